r"""Count the orders of each city. The orders come from a topic with Debezium messages.

    pip install 'ddflow[shell,kafka,duckdb]'
    ddflow run orders.py --state state --from orders=kafka://broker:9092/shop.public.orders --follow

To try it without Kafka, start the mock broker in this folder: `broker.py`.
"""

import ddflow as dd

flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"), format=dd.formats.debezium())
flow.output("by_city", orders.count("city", name="n"))
