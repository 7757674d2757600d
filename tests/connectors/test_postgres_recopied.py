"""Test tables whose rows change without a change in the log: they are copied again with a warning."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from messages import raises
from postgres_server import Server
from test_postgres_faults import waited_for
from test_postgres_source import FORMAT, ask

import ddflow as dd
from ddflow.connectors.address import parse_source
from ddflow.errors import SourceChanged, SpecError, UnreadableInput

COLUMNS = ("id", "other", "v", "e", "p")
KINDS = ("narrow", "wide")
"""A narrow table has no TOAST table: rows that `vacuum full` wrote again are known otherwise."""
PAIR, PAIRED = {"narrow": "int", "wide": "pair"}, {"narrow": "n", "wide": "(n, n)::pair"}
NEW = "insert into t (id, other, v) values (50, 50, 50) on conflict do nothing"
GONE = "delete from t where id = 2"
WRITTEN = "update t set v = 70 where id = 1"


def make(server: Server, kind: str) -> None:
    """Make a table with rows, and another that stays as it is."""
    ask(
        server,
        "create type mood as enum ('sad', 'ok')",
        "create type pair as (a int, b text)",
        f"create table t (id int primary key, other int unique not null, v int, e mood, p {PAIR[kind]})",
        f"insert into t select n, n, n, 'sad', {PAIRED[kind]} from generate_series(1, 5) n",
        "create table quiet (id int primary key)",
        "insert into quiet values (1)",
    )


def flow(**how: Any) -> dd.Flow:
    made = dd.Flow()
    columns = {"id": int, "other": int, "v": str, "e": str, "p": str}
    made.output("rows", made.upserts("t", columns, how.get("spec", dd.Upsert(key="id")), format=FORMAT))
    made.output("quiet rows", made.upserts("quiet", {"id": int}, dd.Upsert(key="id"), format=FORMAT))
    return made


def source(server: Server, **more: Any) -> dict[str, Any]:
    return {"shop": dd.sources.postgres(server.url, {"t": "t", "quiet": "quiet"}, slot="shop", **more)}


def held(engine: Any) -> list[Any]:
    return sorted(tuple(str(row[name]) for name in COLUMNS) for row in engine.read("rows").to_pylist())


def there(server: Server) -> list[Any]:
    return sorted(tuple(map(str, row)) for row in ask(server, "select id, other, v, e::text, p::text from t"))


UNKEYED = "rows were updated or deleted while it had no replica identity"
CHANGED: dict[str, tuple[str, list[str]]] = {
    "key": (
        "its key was different or missing for a while",
        ["alter table t drop constraint t_pkey", GONE, WRITTEN, "alter table t add primary key (id)"],
    ),
    "nothing": (
        UNKEYED,
        ["alter table t replica identity nothing", GONE, WRITTEN, NEW, "alter table t replica identity default"],
    ),
    "other identity": (
        "rows were updated or deleted while its replica identity was not the key",
        [
            "alter table t replica identity using index t_other_key",
            "update t set id = 20 where id = 2",
            "alter table t replica identity default",
        ],
    ),
    "other identity, deleted": (
        "rows were updated or deleted while its replica identity was not the key",
        ["alter table t replica identity using index t_other_key", GONE, "alter table t replica identity default"],
    ),
    "key of the whole row": (
        "its key was different or missing for a while",
        [
            "alter table t replica identity full",
            "alter table t drop constraint t_pkey",
            "insert into t values (1, 11, 1)",
            "delete from t where other = 11",
            "alter table t add primary key (id)",
            "alter table t replica identity default",
        ],
    ),
    "wider key": (
        "its key was different or missing for a while",
        [
            "begin; alter table t drop constraint t_pkey; alter table t add primary key (id, other); commit",
            "insert into t values (1, 11, 1)",
            "delete from t where other = 11",
            "begin; alter table t drop constraint t_pkey; alter table t add primary key (id); commit",
        ],
    ),
    "unlogged": (
        "its rows were rewritten",
        ["alter table t set unlogged", GONE, WRITTEN, NEW, "alter table t set logged"],
    ),
    "unlogged, vacuumed": (
        "its rows were rewritten",
        ["alter table t set unlogged", GONE, "alter table t set logged", "vacuum (full, freeze) t"],
    ),
    "emptied": (
        "its rows were rewritten",
        ["alter table t set unlogged", "delete from t", "alter table t set logged"],
    ),
    "made anew": (
        "it is not the table",
        ["drop table t", "create table t (id int primary key, other int unique not null, v int, e mood, p int)"],
    ),
    "type": ("'v' has another type", ["alter table t alter v type text using 'x' || v"]),
    "type, same": ("its rows were rewritten", ["alter table t alter v type int using v * 2"]),
    "type, not rewritten": (
        "'v' has another type",
        ["alter table t alter v type oid", "alter table t alter v type regclass"],
    ),
    "typmod": ("its rows were rewritten", [WRITTEN, "alter table t alter v type int using v % 2"]),
    "label": ("the enum label 'sad' is 'glad' now", ["alter type mood rename value 'sad' to 'glad'"]),
    "attribute": ("a composite type has other attributes", ["alter type pair add attribute c int"]),
    "attribute, dropped": ("a composite type has other attributes", ["alter type pair drop attribute a"]),
    "column": (
        "'v' is not the same column as before",
        ["alter table t drop v", "alter table t add v int default 4"],
    ),
}
SAME = {
    "vacuum": ["vacuum full t"],
    "vacuum freeze": ["vacuum (full, freeze) t", "vacuum (freeze) t"],
    "cluster": [WRITTEN, "cluster t using t_pkey"],
    "another label": [
        "alter type mood add value 'new' before 'sad'",
        "insert into t (id, other, e) values (9, 9, 'new')",
    ],
    "attribute": ["alter type pair rename attribute b to c"],
    "reindexed": ["reindex table concurrently t", GONE],
    "renamed": ["alter type mood rename to moods", "alter type pair rename to pairs", WRITTEN],
    "full": [
        "alter table t replica identity full",
        GONE,
        "update t set id = 7 where id = 1",
        "alter table t replica identity default",
    ],
    "width": ["alter table t add w varchar(4)", "alter table t alter w type varchar(9)"],
}


def copies(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why tables were copied again."""
    return [each.message.partition("copied again: ")[2] for each in caplog.records if "copied again" in each.message]


@pytest.mark.drawn(9)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CHANGED)
def test_a_table_whose_rows_changed_without_the_log_is_copied_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    """Once, also beside changes of another table."""
    says, acts = CHANGED[name]
    make(server, "wide" if name.startswith("attribute") else kind)
    with flow().open(tmp_path / "state") as engine:
        engine.run(source(server))
        ask(server, *acts, "insert into quiet values (2)")
    with flow().open(tmp_path / "state") as engine:
        engine.run(source(server))
        assert held(engine) == there(server) and engine.read("quiet rows").num_rows == 2
        (why,) = copies(caplog)
        assert says in why
        ask(server, "insert into t (id, other) values (80, 80)", "delete from t where id = 4")
        engine.run(source(server))
        assert held(engine) == there(server) and len(copies(caplog)) == 1


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAME)
def test_a_table_whose_rows_are_the_same_is_not_copied_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    make(server, kind)
    for acts in (SAME[name], [GONE]):
        with flow().open(tmp_path / "state") as engine:
            engine.run(source(server))
            ask(server, *acts)
            engine.run(source(server))
            assert held(engine) == there(server) and not copies(caplog)


def test_it_is_copied_again_within_a_run(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A change that cannot be told while the run follows; the next ones, too."""
    make(server, "narrow")
    state, ends = tmp_path / "state", list[Any]()

    def committed() -> list[Any]:
        with dd.Snapshot.open(state) as snapshot:
            return held(snapshot)

    def act() -> None:
        waited_for(state, 5)()
        for name in ("unlogged", "nothing", "label"):
            before = len(copies(caplog))
            ask(server, "; ".join(CHANGED[name][1]) if name == "unlogged" else "select 1")
            ask(
                server,
                *([] if name == "unlogged" else CHANGED[name][1]),
                "insert into quiet values (2) on conflict do nothing",
            )
            ends.append(time.monotonic() + 120)
            while time.monotonic() < ends[-1] and len(copies(caplog)) == before:
                time.sleep(0.02)
        ask(server, "insert into t (id, other) values (90, 90)")  # which no snapshot of a copy has
        while time.monotonic() < ends[-1] and committed() != there(server):
            time.sleep(0.02)
        engine.stop()

    with flow().open(state) as engine:
        thread = threading.Thread(target=act)
        thread.start()
        done = engine.run(source(server, follow=True), interval="10ms", until="8min")
        thread.join()
        assert done.stopped == "stop"
        engine.run(source(server))
        assert held(engine) == there(server) and len(copies(caplog)) == 3


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["nothing", "other identity", "unlogged", "type", "label", "column"])
def test_it_is_refused_where_it_is_not_to_be_copied_again(server: Server, tmp_path: Path, name: str) -> None:
    """Until a run may do so; neither state nor slot has moved. A run that was to do so and died changes nothing."""
    make(server, "wide")
    slots = "select slot_name, confirmed_flush_lsn from pg_replication_slots"
    with flow().open(tmp_path / "state") as engine:
        engine.run(source(server, recopy=False))
        ask(server, *CHANGED[name][1])
        before = dd.inspect(tmp_path / "state")["sources"], ask(server, slots)
        says = f"public.t for 't': .*{CHANGED[name][0]}.*; run once without recopy=False"
        for _ in range(2):
            with pytest.raises(SourceChanged, match=says):
                engine.run(source(server, recopy=False))
        assert before == (dd.inspect(tmp_path / "state")["sources"], ask(server, slots))
        schemas = {each: engine.dataflow.admissions[each].bound.schema for each in ("t", "quiet")}
        dies = source(server)["shop"].open(schemas, before[0]["shop"]["position"])
        dies.keyed({"t": ["id"], "quiet": ["id"]}, ["t", "quiet"])
        dies.poll(1 << 20)
        dies.close()
        with raises(SourceChanged):
            engine.run(source(server, recopy=False))
        engine.run(source(server))
        assert held(engine) == there(server)
        engine.run(source(server, recopy=False))
    address = f"postgres:{server.url.partition(':')[2]}&recopy=false&slot=shop#t,quiet"
    found = parse_source(address, "shop", follow=False, lines=False)
    assert found == dd.sources.postgres(server.url, {"t": "t", "quiet": "quiet"}, slot="shop", recopy=False)
    with raises(SpecError):
        parse_source(address.replace("false", "no"), "shop", follow=False, lines=False)


def test_a_copy_that_was_to_be_made_is_refused_too(server: Server, tmp_path: Path) -> None:
    """By a run that may not make it; an epoch of others was committed since the table was found to need it."""
    make(server, "narrow")
    with flow().open(tmp_path / "state") as engine:
        engine.run(source(server))
        position = dd.inspect(tmp_path / "state")["sources"]["shop"]["position"]
        schemas = {each: engine.dataflow.admissions[each].bound.schema for each in ("t", "quiet")}
    ask(server, "alter type mood rename value 'sad' to 'glad'", "insert into quiet values (2)")
    opened = source(server)["shop"].open(schemas, position)
    opened.keyed({"t": ["id"], "quiet": ["id"]}, ["t", "quiet"])
    reached = opened.poll(1 << 20).position
    assert reached["tables"]["public.t"]["again"] and reached["tables"]["public.t"]["labels"] != {}
    opened.close()
    with raises(SourceChanged):
        source(server, recopy=False)["shop"].open(schemas, reached)


FOLDED = {"merge": {"merge": dd.Merge({"v": dd.last()})}, "time": {"time": "other", "lateness": 0}}


@pytest.mark.parametrize("how", FOLDED)
def test_folded_rows_are_never_copied_again(server: Server, tmp_path: Path, how: str) -> None:
    """Changes that are lost end the run; what may have changed is warned of."""
    make(server, "narrow")
    spec = dd.Upsert(key="id", **FOLDED[how])
    columns = {"id": int, "other": int, "v": int, "e": str}
    made = dd.Flow()
    made.output("rows", made.upserts("t", columns, spec, format=FORMAT))
    shop = {"shop": dd.sources.postgres(server.url, {"t": "t"}, slot="shop")}
    with made.open(tmp_path / "state") as engine:
        engine.run(shop)
        ask(server, "alter type mood rename value 'sad' to 'glad'")
        with pytest.warns(UserWarning, match="'glad' now: older rows may have other values in Postgres"):
            engine.run(shop)
        ask(server, *CHANGED["unlogged"][1])
        with pytest.warns(UserWarning, match=r"its rows were rewritten.*: older rows may have other values"):
            engine.run(shop)
        ask(server, *CHANGED["nothing"][1])
        with raises(SourceChanged):
            engine.run(shop)


def test_an_unlogged_table_is_refused_and_copied_again_once_it_is_logged(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(server, "narrow")
    with flow().open(tmp_path / "state") as engine:
        engine.run(source(server))
        ask(server, "alter table t set unlogged", WRITTEN)
        with raises(UnreadableInput):
            engine.run(source(server))
        ask(server, "alter table t set logged")
        engine.run(source(server))
        assert held(engine) == there(server) and len(copies(caplog)) == 1


@pytest.mark.parametrize("kind", ["mood[]", "moods", "moodrange", "moodrange[]", "moodmultirange", "box_", "box_[]"])
def test_a_label_that_is_renamed_is_found_within_other_types(server: Server, tmp_path: Path, kind: str) -> None:
    ask(
        server,
        "create type mood as enum ('sad', 'ok')",
        "create domain moods as mood",
        "create type moodrange as range (subtype = mood)",
        "create type box_ as (n int, mood moods)",
        f"create table t (id int primary key, v {kind})",
    )
    value = {
        "mood": "'sad'",
        "moods": "'sad'",
        "moodrange": "'[sad,sad]'",
        "moodmultirange": "'{[sad,sad]}'",
        "box_": "'(1,sad)'",
    }[kind.removesuffix("[]")]
    value = f"array[{value}]::{kind}" if kind.endswith("[]") else value
    ask(server, f"insert into t values (1, {value})")
    made = dd.Flow()
    made.output("rows", made.upserts("t", {"id": int, "v": str}, dd.Upsert(key="id"), format=FORMAT))
    with made.open(tmp_path / "state") as engine:
        for _ in range(2):
            engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
            assert engine.read("rows").column("v").to_pylist() == [ask(server, "select v::text from t")[0][0]]
            ask(server, "alter type mood rename value 'sad' to 'glad'") if not _ else None
