"""librdkafka's mock of a Kafka cluster, that of the example, in a process of its own: ``with Cluster() as servers``.

It keeps what is produced and committed; it does not fence producers, hides nothing of aborted transactions, and keeps
no offsets of transactions.  Topics are made when they are first written to, with four partitions.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka"
PROGRAM = """
import sys
from broker import mock_cluster
made, servers = mock_cluster()
print(servers, flush=True)
sys.stdin.read()
"""


class Cluster:
    """A cluster that lives as long as this."""

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=EXAMPLE
        )
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __exit__(self, *failed: Any) -> None:
        self.process.communicate()
