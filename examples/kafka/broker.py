"""Start librdkafka's mock of a Kafka cluster, with a topic of orders for `ddflow run`.

    pip install 'ddflow[shell,kafka,duckdb]'
    python examples/kafka/broker.py

The program prints the broker's address, and the commands to run in other shells. Then the program sends the changes
that you type, until Ctrl-C. All data of the broker is in memory, and is lost when the process ends. Any Kafka client on
this machine can connect to the broker. docs/connectors/kafka.md lists the limits of the broker.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

HERE: Final = Path(__file__).parent
TOPIC: Final = "shop.public.orders"
CITIES: Final = ("Bern", "Chur", "Visp", "Thun", "Brig")
SAID: Final = """\
A mock of a Kafka broker listens on {servers}. Its topic {topic} has {n} messages of Debezium.

In a second shell:

    ddflow run {flow} --state state --from orders=kafka://{servers}/{topic} --follow

In a third shell:

    ddflow watch state by_city

Then type here: "7 Sion" moves order 7 to Sion, and "7" deletes it. Ctrl-C ends the broker and its topics.
The next broker begins with new topics, so also use a new state then.
"""


def mock_cluster() -> tuple[Any, str]:
    """Start a cluster in this process.

    Return its ``bootstrap.servers``, and the producer that keeps the cluster alive.
    """
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    brokers = producer.list_topics(timeout=10).brokers.values()
    return producer, ",".join(f"{each.host}:{each.port}" for each in brokers)


class Orders:
    """A table of orders that sends its changes to the topic in Debezium's format."""

    def __init__(self, producer: Any) -> None:
        self.producer, self.cities, self.sent = producer, dict[int, str](), 0

    def change(self, order: int, city: str | None) -> str:
        """Set the city of an order, or delete the order if the city is None; return the message."""
        before, after = ({"id": order, "city": each} if each else None for each in (self.cities.get(order), city))
        operation = "d" if after is None else "c" if before is None else "u"
        source = {"schema": "public", "table": "orders"}
        message = {"before": before, "after": after, "op": operation, "source": source}
        value = json.dumps(message | {"ts_ms": int(time.time() * 1000)})
        self.producer.produce(TOPIC, value, json.dumps({"id": order}))
        self.producer.flush(10)
        self.sent += 1
        self.cities.pop(order, None)
        if city:
            self.cities[order] = city
        return value

    def fill(self) -> None:
        """Send forty orders. Then change the city of some orders, and delete some others."""
        for order in range(1, 41):
            self.change(order, CITIES[order % len(CITIES)])
        for order in range(3, 41, 6):
            self.change(order, CITIES[0])
        for order in range(10, 41, 10):
            self.change(order, None)

    def typed(self, line: str) -> str:
        """Apply a line that the user typed, and return the text to print."""
        order, _, city = line.strip().partition(" ")
        if not order.isdecimal():
            return 'type the number of an order and a city, like "7 Sion", or only the number to delete the order'
        if not city and int(order) not in self.cities:
            return f"there is no order {order}"
        return f"sent: {self.change(int(order), city.strip() or None)}"


def main() -> None:
    """Run the mock and send the typed changes."""
    producer, servers = mock_cluster()
    orders = Orders(producer)
    orders.fill()
    print(SAID.format(servers=servers, topic=TOPIC, n=orders.sent, flow=HERE / "orders.py"), end="", flush=True)
    for line in sys.stdin:
        print(orders.typed(line), flush=True)
    threading.Event().wait()  # stdin is closed, so wait for Ctrl-C


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
