"""Compare a view that `ddflow run` keeps with the answer of Postgres, while the tables change.

    python examples/cdc/live.py

The demo starts a temporary Postgres, a process that changes two tables (`shop.py`), and `ddflow run flow.py`. The run
follows the tables through a logical slot and writes the view to the same server. Halfway the demo kills the run
(SIGKILL) and starts it again.

Ten times a second the demo compares the view with the server's answer **as of the same transaction**. The shop stores
the answer of each transaction under the transaction's number, and the view contains the latest number. One SQL query
reads both in one snapshot. The exit code is 0 if all comparisons found equal rows, 1 if one did not, and 2 if Postgres
is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
import shop
from local_postgres import INSTALL, LocalPostgres, missing

HERE: Final = Path(__file__).parent
DDFLOW: Final = Path(sys.executable).parent / "ddflow"
LOOK: Final = f"""
    with view as (select {shop.ROWS.format("select * from by_city")} as rows),
    at as (select total::bigint as transaction from by_city where city = '{shop.MARK}')
    select transaction, view.rows = answer, view.rows, answer, extract(epoch from clock_timestamp() - answers.at),
        (select max(transaction) from answers)
    from at left join answers using (transaction), view"""
"""The query that reads the view and the answer. A statement sees a single snapshot of the database."""


class View:
    """The table that the run keeps up to date, and how often it was correct."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.compared = self.differed = 0
        self.seen: set[int] = set()
        self.at = self.newest = -1
        self.began, self.said = time.monotonic(), 0.0

    def compare(self) -> str:
        """Compare the view once, and describe the result."""
        if self.connection.execute("select to_regclass('by_city')").fetchone() == (None,):
            return "the view does not exist yet"
        found = self.connection.execute(LOOK).fetchone()
        if found is None:
            return "the view is empty"
        at, equal, rows, answer, age, newest = found
        self.compared, self.differed = self.compared + 1, self.differed + (not equal or at < self.at)
        self.seen.add(at)
        self.at, self.newest = at, newest
        if not equal:
            return f"transaction {at:,} of {newest:,}: DIFFERS: the view has {rows}, but Postgres answers {answer}"
        behind = "" if at == newest else f", {newest - at:,} behind"
        return f"transaction {at:,} of {newest:,}{behind}: {len(rows)} cities, equal ({1000 * float(age):,.0f} ms old)"

    def watch(self, over: Callable[[], bool], *alive: subprocess.Popen[Any], most: float = 60) -> None:
        """Compare the view again and again, until ``over`` is true.

        Raises `TimeoutError`, or `ChildProcessError` if a process has ended.
        """
        ends = time.monotonic() + most
        while not over():
            line, now = self.compare(), time.monotonic() - self.began
            if now - self.said >= 1:
                self.said = now
                print(f"{now:5.1f} s  {line}", flush=True)
            if any(each.poll() is not None for each in alive):
                raise ChildProcessError("the run or the shop has ended")
            if time.monotonic() > ends:
                raise TimeoutError("the run is too slow")
            time.sleep(0.1)


def started(url: str, place: Path) -> subprocess.Popen[bytes]:
    """Start the run with the command that a user would type."""
    source = f"shop={url}#public.orders,public.customers"
    options = ["--from", source, "--to", f"by_city={url}", "--follow", "--interval", "200ms"]
    command = [str(DDFLOW), "run", str(HERE / "flow.py"), "--state", str(place / "state"), *options]
    with (place / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def watch(url: str, place: Path, seconds: float) -> int:
    """Start everything, compare, kill and restart the run, report the result, and return the exit code.

    ``seconds``: the minimum time after the view appears; the kill happens halfway.
    """
    run, view = started(url, place), View(url)
    writer = subprocess.Popen([sys.executable, HERE / "shop.py", url], stdout=subprocess.PIPE, text=True)
    try:
        view.watch(lambda: bool(view.seen), run, writer)
        there = time.monotonic()
        view.watch(lambda: time.monotonic() > there + seconds / 2 and len(view.seen) > 1, run, writer)
        run.kill()
        run.wait()
        print(f"{time.monotonic() - view.began:5.1f} s  killed the run (kill -9), and started it again", flush=True)
        run, killed_at = started(url, place), view.at
        view.watch(lambda: time.monotonic() > there + seconds and view.at > killed_at, run, writer)
        writer.terminate()
        print(f"the shop made these changes: {writer.communicate()[0].strip()}")
        view.compare()
        view.watch(lambda: view.at == view.newest, run)
        run.terminate()
        run.wait(20)
        return verdict(view)
    except (TimeoutError, ChildProcessError) as error:
        print(f"{error}: {(place / 'log').read_text()}")
        return 1
    finally:
        run.kill()
        writer.kill()
        view.connection.close()


def verdict(view: View) -> int:
    """Print the final result, and return the exit code."""
    now = f"select {shop.ROWS.format('select * from by_city')} = {shop.ROWS.format(shop.QUERY)}"
    same = view.connection.execute(now).fetchone() == (True,)
    print(f"at the end the view is {'' if same else 'NOT '}equal to the answer of Postgres")
    what = f"{view.compared:,} comparisons at {len(view.seen):,} transactions"
    print(f"{what}: {f'{view.differed:,} differ' if view.differed else 'all equal'}")
    return 0 if same and not view.differed else 1


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="least seconds of changes (15)")
    seconds = parser.parse_args().seconds
    if lacks := missing():
        print(f"{lacks}: {INSTALL}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place, LocalPostgres(tcp=True) as server:
        os.environ["PGPASSWORD"] = server.password
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(shop.TABLES)
        print(f"Postgres is at {server.url}; flow.py keeps by_city there:{shop.QUERY}")
        return watch(server.url, Path(place), seconds)


if __name__ == "__main__":
    sys.exit(main())
