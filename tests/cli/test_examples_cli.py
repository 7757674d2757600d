"""Run every example in a verb's help, in a folder with the files and states that the examples name.

Examples come from the docstrings, so a new verb or example is covered automatically. A verb without an example fails,
and an example fails if the folder lacks its files. Only a Postgres address is replaced, by the tests' server.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from chance import mid_test
from local_postgres import missing
from postgres_server import Server
from s3_server import Moto, forward, moto
from test_first_screen import understood
from test_places import put
from typer.testing import CliRunner

from ddflow.cli import VERBS, app

__all__ = ["moto"]  # a fixture

MONDAY = """id,region,city,customer,amount,status,day,updated_at,op
1,EU,Bern,7,120,paid,2024-01-01,2024-01-01 08:00:00,U
2,EU,Basel,8,80,open,2024-01-01,2024-01-01 09:00:00,U
7,EU,Bern,7,150,paid,2024-01-02,2024-01-01 10:00:00,U
"""
TUESDAY = """id,region,city,customer,amount,status,day,updated_at,op
1,EU,Basel,7,120,paid,2024-01-03,2024-01-02 08:00:00,U
"""
ORDERS = """id,city,customer,amount,status,day
1,Bern,7,120,paid,2024-01-01
2,Basel,8,80,open,2024-01-01
"""
FLOW = """
from datetime import date
import ddflow as dd
flow = dd.Flow()
columns = {"id": int, "city": str, "customer": int, "amount": int, "status": str, "day": date}
def inputs(**format):
    yield flow.upserts("orders", columns, dd.Upsert(key="id"), **format)
    yield flow.upserts("customers", {"id": int, "city": str}, dd.Upsert(key="id"), **format)
"""
OUTPUTS = """
flow.output("by_city", orders.group_by("city").agg(n="count(*)", revenue="sum(amount)"))
flow.output("customers", customers)
"""
DAY = "id;city;amount\n1;Bern;120\n2;NA;80\n"
FILES = {
    "monday.csv": MONDAY,
    "tuesday.csv": TUESDAY,
    "full.csv": MONDAY,
    "eu.csv": MONDAY,
    "yesterday.csv": MONDAY,
    "today.csv": TUESDAY,
    "log/1.csv": MONDAY,
    "log/2.csv": TUESDAY,
    "orders/1.csv": ORDERS,
    "orders/2.csv": ORDERS.replace("Basel", "Chur"),
    "landing/1.csv": ORDERS,
    "day1.csv": DAY.replace(";", ","),
    "day2.csv": "id,city,amount\n2,Chur,80\n",
    "day3.csv": "id,city,amount\n2,Chur,90\n",
    "customers.csv": "id,city\n7,Bern\n8,Basel\n",
    "wednesday.csv": TUESDAY.replace("2024-01-02 08", "2024-01-03 08"),
    "stock/1.csv": "sku,store,left\n7,Bern,3\n",
    "visits.jsonl": '{"user":1,"at":1,"visits":2,"tags":["a"]}\n{"user":1,"at":2,"visits":3,"tags":["b"]}\n',
    "readings/1.csv": "sensor,metric,at,value\n1,heat,2024-01-01 08:00:00,20.5\n1,heat,2024-01-01 08:05:00,21.0\n",
    "packages/1.csv": "name,version,checked_at\na,1,2024-01-01\n",
    "packages/2.csv": "name,version,checked_at\na,1,2024-01-02\n",
    "beds/1.csv": "bed_id,ward\n1,A\n2,B\n",
    "outages.csv": "id,outage_id,customers\n1,70,3\n",
    "flow.py": f"{FLOW}orders, customers = inputs()\n{OUTPUTS}",
    "live.py": f"{FLOW}orders, customers = inputs(format=dd.formats.wal2json())\n{OUTPUTS}",
}
PACKED = {
    "days/1.csv.gz": DAY,
    "logs/1.csv.gz": "path\n/a\n/b\n/a\n",
    "feed.gz": '{"id":1,"city":"Bern"}\n{"id":1,"city":"Basel"}\n',
}
STATES = [
    "diff monday.csv tuesday.csv --key id --order-by updated_at --state state/orders -o -",
    "replace full.csv --key id --state state/places -o -",
    "diff monday.csv tuesday.csv --key id --state state/places -o -",
    "diff stock/1.csv --key sku,store --state state/stock -o -",
    "diff outages.csv --key id --state state/outages -o -",
]

POSTGRES = "postgres://me@db/shop"


def examples(verb: str) -> list[str]:
    """The examples of a verb's help."""
    text = getattr(importlib.import_module(f"ddflow.cli.{verb}"), verb).__doc__
    return [" ".join(each.split()) for each in re.findall(r"^ +\* `([^`]+)`", text.partition("Examples:")[2], re.M)]


EXAMPLES = {f"{verb}{n}": line for verb in VERBS for n, line in enumerate(examples(verb))}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the examples name."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name, text in PACKED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    for name in ("orders", "old", "new"):
        pq.write_table(pc.read_csv(folder / "monday.csv"), folder / f"{name}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in STATES:
            ran(*shlex.split(line))
        with run_path("flow.py")["flow"].open("state/shop", retain=9) as engine:
            for part in ("orders/1.csv", "orders/2.csv"):
                engine.step({"orders": pc.read_csv(part), "customers": pc.read_csv("customers.csv")})
    return folder


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket that the examples name."""
    assert forward(moto.url, ("PUT", "/bucket", {"Content-Length": "0"}, b""))[0] == 200
    put(moto, "bucket", "late/1.csv", DAY.encode())
    for name, value in (("AWS_ENDPOINT_URL", moto.url), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key")):
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server with the tables of the examples."""
    import psycopg

    with Server() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute(
                "create table orders (id bigint primary key, city text, customer bigint, amount bigint, "
                "status text, day date);"
                "create table customers (id bigint primary key, city text);"
                "insert into orders values (1, 'Bern', 7, 120, 'paid', '2024-01-01');"
                "insert into customers values (7, 'Bern')"
            )
        yield server.url


def ran(*words: str) -> str:
    """What a command line says, in this process, when it ends well."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example(verb: str) -> None:
    assert examples(verb) and all(f"ddflow {verb}" in line for line in examples(verb))


@mid_test
@pytest.mark.parametrize("which", EXAMPLES)
def test_it_runs(
    which: str, prepared: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, folder = EXAMPLES[which], tmp_path / "here"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    if "s3://bucket" in line:
        request.getfixturevalue("bucket")
        ran(*shlex.split("diff monday.csv --key id --state s3://bucket/orders --epoch 1 -o -"))
    if POSTGRES in line:
        if missing():  # on this machine: whether it is understood
            understood(line)
            return
        url = request.getfixturevalue("postgres")
        line = line.replace(f"{POSTGRES}?", f"{url}&").replace(POSTGRES, url)
    if "--follow" in line:
        line += " --until 1s"
    first, _, second = line.partition(" | ")
    if second.startswith("ddflow"):
        path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        assert subprocess.check_output(line, shell=True, env={**os.environ, **path}) != b""
        return
    words = shlex.split(first)  # what reads the output of a verb is no part of ddflow
    assert ran(*words[1:]) != ""
    written = words[words.index("-o") + 1] if "-o" in words else "-"
    assert written == "-" or Path(written).exists()
