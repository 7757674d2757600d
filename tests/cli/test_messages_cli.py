"""Test ``--format debezium`` on the shell: columns from the messages, from a schema, or declared by the user."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import effort
from hypothesis import given, strategies as st
from test_formats_recorded import EVERYTHING
from typer.testing import CliRunner

from ddflow.cli import app
from ddflow.cli.arguments import VerbOptions
from ddflow.cli.input_files import build_file_options
from ddflow.cli.plan import find_message_columns
from ddflow.connectors.files import open_files
from ddflow.connectors.files.csv_reader import BLOCK, drop_blank_lines, read_line_blocks
from ddflow.connectors.formats.row_columns import find_kafka_connect_type

DECIMAL = "org.apache.kafka.connect.data.Decimal"
TOPIC = "shop.public.everything"
RECORDED = Path(__file__).parent.parent / "connectors" / "recordings" / "debezium_postgres.jsonl.gz"


def ran(*words: Any, input: str | None = None, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, words)), input=input)
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout if code == 0 else result.output


def message(op: str, lsn: int, **row: Any) -> str:
    sides = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps({"op": op, **sides, "source": {"lsn": lsn, "table": "orders"}})


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    file = tmp_path / "a.jsonl"
    lines = [message("c", 1, id=1, city="Bern", paid=5.5), message("c", 2, id=2, city="Bern", paid=7), ""]
    lines += [message("u", 3, id=1, city="Chur", paid=5.5), message("d", 4, id=2)]
    file.write_text("\n".join(lines))
    return file


ROW = {"id": 1, "city": "Chur", "paid": 5.5, "_time": 1, "_diff": 1}


def test_a_feed_becomes_differences_counts_and_answers(feed: Path) -> None:
    how = ("--format", "debezium")
    assert json.loads(ran("diff", feed, "-k", "id", *how, "-o", "-")) == ROW
    packed = feed.with_suffix(".gz")
    packed.write_bytes(gzip.compress(feed.read_bytes()))
    assert json.loads(ran("diff", packed, "-k", "id", *how, "-o", "-")) == ROW
    assert json.loads(ran("diff", "-", "-k", "id", *how, "-o", "-", input=feed.read_text())) == ROW
    assert json.loads(ran("count", feed, "-k", "id", "--by", "city", "--net", *how)) == {"city": "Chur", "count": 1}
    asked = "select city, sum(paid) paid from orders group by city"
    assert json.loads(ran("sql", asked, f"orders={feed}:key=id", *how)) == {"city": "Chur", "paid": 5.5}
    typed = json.loads(ran("diff", feed, "-k", "id", *how, "--types", "paid=decimal(6,2),id=int16", "-o", "-"))
    assert typed == ROW | {"paid": "5.50"}


def test_a_declared_column_that_no_message_has_is_told(feed: Path) -> None:
    every = ["diff", feed, "-k", "id", "--format", "debezium", "-o", "-", "--types", "piad=double"]
    result = CliRunner().invoke(app, list(map(str, every)))
    says = "columns: no examined message has the declared column 'piad': did you mean 'paid'? the columns are ["
    assert result.exit_code == 0 and says in result.stderr
    assert json.loads(result.stdout) == ROW


def test_a_state_goes_on_with_its_columns_and_is_proved_by_its_messages(feed: Path, tmp_path: Path) -> None:
    how, state = ("-k", "id", "--format", "debezium", "-o", "-"), tmp_path / "state"
    ran("diff", feed, *how, "--state", state)
    later = tmp_path / "b.jsonl"
    later.write_text(message("u", 9, id=1, city=None, paid=None) + "\n" + message("c", 10, id=3, city="Visp"))
    found = [json.loads(line) for line in ran("diff", later, *how, "--state", state).splitlines()]
    assert [(row["id"], row["city"], row["paid"], row["_diff"]) for row in found] == [
        (1, "Chur", 5.5, -1),
        (1, None, None, 1),
        (3, "Visp", None, 1),
    ]
    assert "agrees with its log: 2 rows, 6 events" in ran("verify", state, feed, later)
    assert "the state has 2, the log gives 1 of 4 events" in ran("verify", state, feed, code=1)
    assert "order (_position=9" in ran("why", state, 1, feed, later)


def test_other_feeds_are_read_too(tmp_path: Path) -> None:
    def written(name: str, *lines: Any) -> Path:
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
        return tmp_path / name

    def only(file: Path, format: str, *more: str) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(ran("diff", file, "-k", "id", "--format", format, "-o", "-", *more))
        return {name: row[name] for name in ("id", "v")}

    expected = {"id": 1, "v": "x"}
    inner = message("c", 1, **expected)
    wrapped = {"topic": "t", "partition": 0, "offset": 7, "key": None, "payload": inner}
    assert only(written("k.jsonl", wrapped), "kcat:debezium") == expected
    flat = written("f.jsonl", expected | {"__op": "c", "__lsn": 5, "__deleted": "false"})
    assert only(flat, "debezium-flat") == expected
    maxwell = {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": expected}
    assert only(written("m.jsonl", maxwell), "maxwell") == expected
    canal = {"database": "d", "table": "t", "type": "INSERT", "data": [{"id": "1", "v": "x"}], "old": None}
    assert only(written("c.jsonl", canal), "canal", "--types", "id=int64,v=string") == expected


def test_types_come_from_a_schema_where_there_is_one(tmp_path: Path) -> None:
    recorded = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
    values = [each["value"] for each in recorded if each["run"] == "schema" and each.get("topic") == TOPIC]
    file = tmp_path / "everything.jsonl"
    file.write_text("\n".join(value for value in values if value))
    with closing(open_files([file], how=build_file_options(VerbOptions(format="debezium")))) as given:
        found = find_message_columns(given, "debezium", {"b": pa.string()})
    names = ["id", "i2", "i4", "f4", "f8", "n", "t", "bin", "d", "tm", "ts", "tstz", "iv", "ia", "b"]
    expected = EVERYTHING | {"b": pa.string()}
    assert {name: found.field(name).type for name in names} == {name: expected[name] for name in names}


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (
            {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
            pa.decimal128(38, 2),
        ),
        ({"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}, None),
        ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, pa.timestamp("us", "UTC")),
        ({"type": "int64", "name": "io.debezium.time.Timestamp"}, pa.timestamp("ms")),
        ({"type": "int64", "name": "io.debezium.time.NanoTime"}, pa.time64("ns")),
        ({"type": "int32", "name": "io.debezium.time.Time"}, pa.time32("ms")),
        ({"type": "int64", "name": "io.debezium.time.MicroDuration"}, pa.duration("us")),
        ({"type": "array", "items": {"type": "map"}}, None),
        ({"type": "double"}, pa.float64()),
    ],
)
def test_a_field_of_connect_has_one_type(field: dict[str, Any], kind: pa.DataType | None) -> None:
    assert find_kafka_connect_type(field) == kind


def test_what_cannot_be_read_says_so(feed: Path, tmp_path: Path) -> None:
    assert "or a message format: debezium, debezium-flat, maxwell" in ran(
        "diff", feed, "-k", "id", "--format", "deb", code=1
    )
    assert "write kcat: with one of" in ran("diff", feed, "-k", "id", "--format", "kcat:csv", code=1)
    says = ran("diff", feed, "-k", "id", "--format", "canal", code=1)
    assert "its messages do not contain types; declare all columns: --types" in says
    assert "the first messages have no row" in ran("diff", feed, "-k", "id", "--format", "maxwell", code=1)
    assert "use ddflow diff" in ran("replace", feed, "-k", "id", "--format", "debezium", code=2)
    assert "write o=FILE:key=COLUMNS" in ran("sql", "select * from o", f"o={feed}", "--format", "debezium", code=2)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(feed.read_text() + "\n{\n")
    assert "line 6: it is not valid JSON" in ran("diff", bad, "-k", "id", "--format", "debezium", code=1)


def test_bad_messages_are_counted_and_written_aside(feed: Path, tmp_path: Path) -> None:
    bad, out, aside = tmp_path / "bad.jsonl", tmp_path / "out.csv", tmp_path / "aside.parquet"
    lines = feed.read_text().split("\n")
    bad.write_text("\n".join([lines[0], "{", *lines[1:]]))
    of, dropping = ("--format", "debezium"), ("--format", "debezium", "--on-bad", "drop")
    assert "or skip bad messages with --on-bad drop, which needs a new state; nothing was ingested" in ran(
        "diff", bad, "-k", "id", *of, code=1
    )
    written = [{"message": b"{", "position": "line 2", "reason": "it is not valid JSON", "_time": 1, "_diff": 1}]
    for words in (
        ("diff", bad, "-k", "id", *dropping),
        ("count", bad, "-k", "id", *dropping),
        ("sql", "select * from o", f"o={bad}:key=id", *dropping),
    ):
        done = json.loads(ran(*words, "--bad-output", aside, "-o", out, "--overwrite", "--json"))
        assert (done["verdicts"]["bad"] if "verdicts" in done else done["bad"]) == 1
        assert pq.read_table(aside).to_pylist() == written
        said = CliRunner().invoke(app, [*map(str, words), "-o", str(out), "--overwrite"]).stderr
        assert "bad 1\n1 message could not be read: --bad-output FILE saves them, with the reasons" in said
        assert "pass one, such as" in ran(*words[:-4], *words[-2:], code=2)
        assert "requires --on-bad" in ran(*words[:-2], "--bad-output", aside, code=2)
        assert "--on-bad keep; use one of ['stop', 'drop']" in ran(*words[:-1], "keep", code=1)
        assert "name the same file" in ran(*words, "-o", aside, "--bad-output", aside, code=2)
    ran("diff", bad, "-k", "id", *dropping, "--state", tmp_path / "state", "-o", out, "--overwrite")
    assert "agrees with its log: 1 row, 5 events" in ran("verify", tmp_path / "state", bad)
    kcat = json.dumps({"topic": "o", "partition": 0, "offset": 0, "key": None, "payload": lines[0]})
    bad.write_text(f"{kcat}\n{{\n")
    words = ("count", bad, "-k", "id", "--format", "kcat:debezium", "--on-bad", "drop", "--net")
    assert json.loads(ran(*words)) == {"count": 1}


@effort(100)
@given(
    st.lists(st.sampled_from([b"", b" ", b"\r", b"x", b"yy\r", b"\xff"])),
    st.booleans(),
    st.sampled_from([1, 2, 5, BLOCK]),
)
def test_lines_are_those_that_stand_there(lines: list[bytes], ends: bool, size: int) -> None:
    text = b"\n".join(lines) + (b"\n" if ends else b"")
    expected = [line for line in text.split(b"\n") if line.strip()]
    found, places = list[bytes](), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddflow.connectors.files.csv_reader.BLOCK", size)
        for first, some in read_line_blocks(pa.BufferReader(text)):
            kept, at = drop_blank_lines(some)
            found += kept.to_pylist()
            places += [first + int(each) for each in at]
    assert found == expected
    assert places == [number for number, line in enumerate(text.split(b"\n")) if line.strip()]
