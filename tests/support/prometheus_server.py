"""Run a Prometheus server that scrapes one address ten times a second and answers queries.

The server keeps its samples in the folder of the test and ends with the test. If the programs of Prometheus are
missing, ``lacking`` says what to install.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs: [{{job_name: ddflow, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def lacking() -> dict[str, str]:
    """Return the test files that cannot run on this machine, each with the programs to install for it."""
    there = all(shutil.which(each) for each in ("prometheus", "promtool"))
    return {} if there else {"exporters/test_dashboard.py": "apt install prometheus"}


class Prometheus:
    """A Prometheus server that scrapes ``target``, a ``host:port``, while the block runs."""

    def __init__(self, folder: Path, target: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
        self._words = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'samples'}",
            f"--web.listen-address={self.address}",
            "--log.level=error",
        ]

    def __enter__(self) -> Prometheus:
        self._process = subprocess.Popen(self._words)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression, each with its labels and its value.

        The result is empty while Prometheus starts. Raises HTTPError.
        """
        address = f"http://{self.address}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(address) as page:
                found: dict[str, Any] = json.load(page)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return []
        except urllib.error.URLError:
            return []
        return [(each["metric"], float(each["value"][1])) for each in found["data"]["result"]]
