r"""Count the orders of each city, from a topic with Debezium messages.

    pip install 'ddflow[shell,kafka,duckdb]'
    ddflow run orders.py --state state --from orders=kafka://broker:9092/shop.public.orders --follow

`broker.py` in this folder can take the place of the broker.
"""

import ddflow as dd

flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"), format=dd.formats.debezium())
flow.output("by_city", orders.count("city", name="n"))
