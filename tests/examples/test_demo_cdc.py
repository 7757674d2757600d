"""Test the demo of a live Postgres: the view is right after a kill, its checks can fail, and the command works."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import live
import local_postgres
import psycopg
import pytest
import shop
from chance import long_test, mid_test
from postgres_server import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(tcp=True) as made:
        monkeypatch.setenv("PGPASSWORD", made.password)
        with psycopg.connect(made.url, autocommit=True) as connection:
            connection.execute(shop.TABLES)
        yield made


def test_a_port_that_another_took_meanwhile_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [local_postgres.free_port(), taken.getsockname()[1]]
        monkeypatch.setattr(local_postgres, "free_port", ports.pop)
        with Server(tcp=True) as server:
            assert not ports and server.port != taken.getsockname()[1]


@long_test
def test_a_view_is_right_at_every_transaction_over_a_kill(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert live.watch(server.url, tmp_path, 2) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "kill -9" in said and "all equal" in said and "the view is equal to the answer of Postgres" in said


@mid_test
def test_the_command_works_as_written_and_a_wrong_row_is_seen(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (live.HERE / "flow.py").read_text()
    (command,) = re.findall(r"    (ddflow run (?:.*\\\n)*.*)", written)
    command = command.replace("--follow ", "").replace("postgres://me@db/shop", server.url)
    (tmp_path / "flow.py").write_text(written)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with psycopg.connect(server.url, autocommit=True) as connection:
        shop.Shop(connection, seed=2).transaction()
    done = subprocess.run(
        ["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr

    view = live.View(server.url)
    assert "equal" in view.compare() and live.verdict(view) == 0
    view.connection.execute("update by_city set total = total + 0.01 where city = 'Bern'")
    assert "DIFFERS" in view.compare() and (view.compared, view.differed) == (2, 1)
    assert live.verdict(view) == 1
    said = capsys.readouterr().out
    assert "1 differ" in said and "NOT equal to the answer of Postgres" in said
    view.connection.close()


def test_without_a_postgres_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_postgres, "programs", lambda: None)
    monkeypatch.setattr(sys, "argv", ["live.py"])
    assert live.main() == 2
    assert "apt install postgresql" in capsys.readouterr().err
