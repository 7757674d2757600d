"""Test that the engine names the place of the message of a refused event, anywhere in a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow import errors


def flow(format: Any) -> dd.Flow:
    made = dd.Flow()
    made.output("out", made.upserts("beds", {"id": int, "t": int}, dd.Upsert(key="id", time="t"), format=format))
    return made


def messages(first: int, rows: Sequence[dict[str, Any]], partition: int | None = 3) -> pa.Table:
    n = len(rows)
    places: dict[str, Any] = {"offset": range(first, first + n)}
    places |= {} if partition is None else {"topic": ["beds"] * n, "partition": [partition] * n}
    return pa.table({"value": [json.dumps(row) for row in rows], **places})


@pytest.mark.parametrize("memory", [None, "32MiB"])
@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ({"id": 2, "t": 3}, errors.LateEvent, "first offset 21 of beds/3, at time 3;"),
        ({"id": 2}, errors.SchemaMismatch, "'t' is null in 1 rows, first in offset 21 of beds/3;"),
        ({"t": 9}, errors.NullKey, r"first in offset 21 of beds/3; fix them, .* or on_bad='drop' of the format;"),
    ],
)
def test_what_is_wrong_with_an_event_names_its_message(
    row: dict[str, Any], error: type[errors.DdflowError], said: str, memory: str | None
) -> None:
    good = {"id": 1, "t": 9}
    with flow(dd.formats.plain_json()).open(memory=memory) as engine:
        engine.push({"beds": messages(7, [good])})
        engine.advance_to(8)
        given = pa.concat_tables([messages(12, [good] * 9), messages(21, [row, good])])
        with pytest.raises(error, match=said):
            engine.push({"beds": given})


def test_of_messages_that_are_several_events_each_the_message_is_named() -> None:
    change = {"type": "INSERT", "database": "d", "table": "beds", "pkNames": ["id"], "es": 1, "ts": 1}
    several = [{"id": str(n), "t": "9"} for n in range(3)]
    given = [{**change, "data": several}, {**change, "data": [*several, {"id": "7", "t": "3"}]}]
    with flow(dd.formats.canal()).open() as engine:
        engine.advance_to(8)
        with raises(errors.LateEvent):
            engine.push({"beds": messages(30, given, None)})


def test_a_line_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"id": 1, "t": 9}\n\n{"id": 2, "t": null}\n')
    source = dd.sources.files(tmp_path / "*.jsonl", lines=True)
    with (
        flow(dd.formats.plain_json()).open() as engine,
        raises(errors.SchemaMismatch),
    ):
        engine.run({"beds": source}, lateness=1)


def change(lsn: Any, id: Any, version: int = 2) -> str:
    """A row that was inserted, as wal2json writes it."""
    if version == 1:
        row = {"columnnames": ["id", "t"], "columnvalues": [id, 9], "columntypes": ["bigint", "bigint"]}
        return json.dumps({"nextlsn": lsn, "change": [{"kind": "insert", "schema": "public", "table": "beds", **row}]})
    cells = [{"name": name, "type": "bigint", "value": value} for name, value in (("id", id), ("t", 9))]
    return json.dumps({"action": "I", "lsn": lsn, "schema": "public", "table": "beds", "columns": cells})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("lsn", "place"), [("0/16B3748", "0/16B3748 of the log"), ("x" * 99, "row 1, counted from 0"), (None, "row 1, ")]
)
@pytest.mark.parametrize(("id", "error"), [(None, errors.NullKey), ("x", errors.BadMessage)])
def test_a_change_of_postgres_is_named_by_its_place_in_the_log(
    version: int, lsn: Any, place: str, id: Any, error: type[errors.DdflowError]
) -> None:
    given = {"value": [change("0/1", 7, version), change(lsn, id, version)]}
    with flow(dd.formats.wal2json()).open() as engine:
        with pytest.raises(error) as caught:
            engine.push({"beds": given})
        assert place in str(caught.value)
        with pytest.raises(error, match=r"offset 8[;:]"):
            engine.push({"beds": {**given, "offset": [7, 8]}})
