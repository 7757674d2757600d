"""Run the mock Kafka cluster of the example in its own process: ``with Cluster() as servers``.

The mock keeps produced and committed data. The mock does not fence producers, does not hide aborted transactions, and
does not keep the offsets of a transaction. The first write creates a topic, with four partitions.
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
    """A cluster that runs while the context is open."""

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=EXAMPLE
        )
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __exit__(self, *failed: Any) -> None:
        self.process.communicate()
