r"""Orders of a topic, in Debezium's messages, and how many each city has.

    pip install 'ddflow[shell,kafka,duckdb]'
    ddflow run orders.py --state state --from orders=kafka://broker:9092/shop.public.orders --follow

`broker.py` beside this file stands for the broker.
"""

import ddflow as dd

flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"), format=dd.formats.debezium())
flow.output("by_city", orders.count("city", name="n"))
