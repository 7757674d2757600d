"""Test Debezium's engine on a live Postgres into Delta Lake, with a kill of both processes."""

from __future__ import annotations

from pathlib import Path

import live_debezium
import psycopg
import pytest
import shop
from postgres_server import Server


@pytest.mark.soak
def test_the_lake_has_what_postgres_has_over_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(live_debezium.find_java().home))
    with Server(tcp=True) as server:
        monkeypatch.setenv("PGPASSWORD", server.password)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(shop.TABLES)
        assert live_debezium.watch(server.url, tmp_path, 3) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "kill -9" in said and "orders and by_city in the lake equal the answers of Postgres" in said
