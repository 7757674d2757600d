r"""Join and aggregate two tables of Postgres, and keep the answer up to date in a third table.

Copy this file, write your own tables and columns into it, and run:

    pip install 'ddflow[postgres,duckdb]'
    ddflow run flow.py --state state --follow \
        --from 'shop=postgres://me@db/shop?slot=by_city#public.orders,public.customers' \
        --to by_city=postgres://me@db/shop

The server needs ``wal_level=logical``, the plugin wal2json (``apt install postgresql-15-wal2json``, with the number of
your version), and a role with ``replication`` and ``select``. The password of the role is in PGPASSWORD or ~/.pgpass.
The first run creates the replication slot, copies both tables, and then follows every change. You can stop the run in
any way (Ctrl-C, kill -9), and start it again.
"""

import pyarrow as pa

import ddflow as dd

CHANGES = dd.formats.wal2json(unavailable=True)
ORDERS = {"id": int, "customer": int, "amount": pa.decimal128(9, 2)}
CUSTOMERS = {"id": int, "city": str}

flow = dd.Flow()
# Each input has the name of its table, the columns that you want, and the table's primary key.
orders = flow.upserts("orders", ORDERS, dd.Upsert(key="id"), format=CHANGES)
customers = flow.upserts("customers", CUSTOMERS, dd.Upsert(key="id"), format=CHANGES)
by_city = flow.sql(
    "select city, count(*) as orders, sum(amount) as total "
    "from orders join customers on orders.customer = customers.id group by city",
    orders=orders,
    customers=customers,
)
flow.output("by_city", by_city)
