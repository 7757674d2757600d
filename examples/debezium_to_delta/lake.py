r"""Turn files of Debezium messages into two tables of Delta Lake: a mirrored table, and a join with aggregates.

Copy this file, write your own tables and columns into it, and run:

    pip install 'ddflow[delta,duckdb]'
    ddflow run lake.py --state state --follow --lines \
        --from 'orders=files:landing/shop.public.orders/*.jsonl' \
        --from 'customers=files:landing/shop.public.customers/*.jsonl' \
        --to orders=delta:lake/orders --to by_city=delta:lake/by_city

Any program may write the files, such as `capture.py` or Debezium Server. To read a topic instead, pass
``--from orders=kafka://broker:9092/shop.public.orders``. Messages have log positions, so duplicates change nothing.
"""

import pyarrow as pa

import ddflow as dd

MESSAGES = dd.formats.debezium()
ORDERS = {"id": int, "customer": int, "amount": pa.decimal128(9, 2)}
CUSTOMERS = {"id": int, "city": str}

flow = dd.Flow()
orders = flow.upserts("orders", ORDERS, dd.Upsert(key="id"), format=MESSAGES)
customers = flow.upserts("customers", CUSTOMERS, dd.Upsert(key="id"), format=MESSAGES)
by_city = flow.sql(
    "select city, count(*) as orders, sum(amount) as total "
    "from orders join customers on orders.customer = customers.id group by city",
    orders=orders,
    customers=customers,
)
flow.output("orders", orders)
flow.output("by_city", by_city)
