"""librdkafka's mock of a Kafka cluster, in a process of its own: ``with Cluster() as servers``.

It keeps what is produced and committed; it does not fence producers, hides nothing of aborted transactions, and keeps
no offsets of transactions.  Topics are made when they are first written to, with four partitions.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

PROGRAM = """
import sys
from confluent_kafka import Producer
made = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
brokers = made.list_topics(timeout=10).brokers.values()
print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
sys.stdin.read()
"""


class Cluster:
    """A cluster that lives as long as this."""

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __exit__(self, *failed: Any) -> None:
        self.process.communicate()
