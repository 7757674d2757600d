"""Test states whose tables, slot or server were replaced: the run raises an error and loses no change."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from chance import mid_test
from messages import raises
from postgres_server import Server
from test_postgres_source import FORMAT, ask

import ddflow as dd
from ddflow.errors import SourceChanged, SourceFailed, SpecError, UnreadableInput


@pytest.fixture(autouse=True)
def tables(server: Server) -> None:
    """Three tables with a row each."""
    for name in ("fa", "fb", "fc"):
        ask(server, f"create table {name} (id int primary key)", f"insert into {name} values (1)")


def run(
    server: Server, state: Path, source: str = "shop", slot: str = "shop", patience: Any = "0s", **feeds: str
) -> Any:
    """Follow tables, by the input of each; what is held, by input."""
    made = dd.Flow()
    for name in ("fa", "fb"):
        made.output(f"{name} rows", made.upserts(name, {"id": int}, dd.Upsert(key="id"), format=FORMAT))
    with made.open(state) as engine:
        engine.run({source: dd.sources.postgres(server.url, feeds, slot=slot)}, give_up_after=patience)
        return {name: sorted(engine.read(f"{name} rows").column("id").to_pylist()) for name in ("fa", "fb")}


def refused(server: Server, state: Path, kind: type[Exception], says: str, *args: Any, **feeds: str) -> None:
    """An error, in which neither the state nor the slot has moved."""
    slots = "select slot_name, confirmed_flush_lsn from pg_replication_slots order by 1"
    before = dd.inspect(state)["sources"], ask(server, slots)
    with pytest.raises(kind, match=says):
        run(server, state, *args, **feeds)
    assert (dd.inspect(state)["sources"], ask(server, slots)) == before


def test_a_table_that_was_never_copied_is_copied_first(server: Server, tmp_path: Path) -> None:
    state = tmp_path / "s"
    assert run(server, state, fa="fa") == {"fa": [1], "fb": []}
    for number in range(2, 5):
        ask(server, f"insert into fa values ({number})", f"insert into fb values ({number})")
    ask(server, "delete from fb where id = 2", "update fb set id = 30 where id = 3")
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1, 2, 3, 4], "fb": [1, 4, 30]}
    ask(server, "begin; insert into fa values (5); delete from fb where id = 4; insert into fb values (5); commit")
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1, 2, 3, 4, 5], "fb": [1, 5, 30]}
    assert ask(server, "select slot_name from pg_replication_slots") == [("shop",)]


def test_a_new_column_that_the_table_does_not_have_is_not_taken_in(server: Server, tmp_path: Path) -> None:
    ask(server, "alter table fa add column floor int")

    def read(**more: type) -> None:
        made = dd.Flow()
        made.output("rows", made.upserts("fa", {"id": int, **more}, dd.Upsert(key="id"), format=FORMAT))
        with made.open(tmp_path / "s") as engine:
            engine.run({"shop": dd.sources.postgres(server.url, {"fa": "fa"}, slot="shop")}, give_up_after="0s")

    read()
    with (
        pytest.warns(UserWarning, match="'storey' of input 'fa' is new in this state, and permanent"),
        raises(UnreadableInput),
    ):
        read(storey=int)
    read()
    with pytest.warns(UserWarning, match="'floor' of input 'fa' is new"):
        read(floor=int)
    ask(server, "alter table fa drop column floor")
    with pytest.warns(UserWarning, match="has no column 'floor' any more"):
        read(floor=int)


def test_an_input_is_read_from_one_slot(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", fa="fa")
    assert run(server, tmp_path / "s", "fb", "other", fb="fb") == {"fa": [1], "fb": [1]}
    says = "this state reads '{0}' as '{1}', from postgresql://.*#{2}; let '{1}'"
    refused(server, tmp_path / "s", SpecError, says.format("fb", "fb", "other"), fa="fa", fb="fb")
    refused(server, tmp_path / "s", SpecError, says.format("fa", "shop", "shop"), "fb", "other", fa="fa", fb="fb")


def opened(server: Server, position: Any, *tables: str) -> Any:
    """A source that follows tables from a position on."""
    made = dd.Flow()
    schemas = {
        name: made.upserts(name, {"id": int}, dd.Upsert(key="id"), format=FORMAT).bound.schema for name in tables
    }
    feeds = {name: name for name in tables}
    return dd.sources.postgres(server.url, feeds, slot="shop", follow=True).open(schemas, position)


def polled(source: Any) -> tuple[list[tuple[str, int]], Any]:
    """What a source gives up to where an epoch may end: the action and the key of each message; and the position."""
    said = list[tuple[str, int]]()
    for _ in range(1000):
        if (came := source.poll(1 << 20)) is None:
            continue
        for batches in came.rows.values():
            for each in (json.loads(text) for batch in batches for text in batch.column("value").to_pylist()):
                cells = each.get("columns") or each["identity"]
                said.append((f"{each['action']} {each['table']}", cells[0]["value"]))
        if came.position is not None:
            return sorted((what, int(key)) for what, key in said), came.position
    raise AssertionError(said)


def test_changes_beside_a_copy_that_is_added_are_in_one_of_both(server: Server) -> None:
    """A copy that dies is begun again, and leaves no slot."""
    first = opened(server, None, "fa")
    _, position = polled(first)
    first.acknowledge(position)
    first.close()
    ask(server, "insert into fa values (2)", "insert into fb values (2)")
    dies = opened(server, position, "fa", "fb")
    _, reached = polled(dies)
    dies.acknowledge(reached)  # what there was before is an epoch of its own
    ask(server, "insert into fa values (3)", "insert into fb values (3)")
    assert dies.poll(1 << 20).position is None
    for each in (dies._state.snapshot, dies.connection):
        each.close()  # as if the process had died
    again = opened(server, reached, "fa", "fb")
    assert polled(again)[0] == [("I fa", 3)]
    again.close()  # before the commit
    again = opened(server, reached, "fa", "fb")
    _, reached = polled(again)
    again.acknowledge(reached)
    assert again.poll(1 << 20).position is None
    ask(server, "insert into fa values (4)", "insert into fb values (4)", "delete from fb where id = 1")
    said, added = polled(again)
    assert said == [("I fb", 1), ("I fb", 2), ("I fb", 3)]
    again.acknowledge(added)
    assert polled(again)[0] == [("D fb", 1), ("I fa", 4), ("I fb", 4)]
    again.close()
    assert ask(server, "select slot_name from pg_replication_slots") == [("shop",)]


def test_one_slot_more_is_needed_while_a_table_is_added(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", fa="fa")
    most = int(ask(server, "show max_replication_slots")[0][0])
    ask(server, *(f"select pg_create_physical_replication_slot('fill{n}')" for n in range(most - 1)))
    ask(server, "insert into fa values (2)")
    with raises(UnreadableInput):
        run(server, tmp_path / "s", fa="fa", fb="fb")
    ask(server, "select pg_drop_replication_slot('fill0')")
    assert run(server, tmp_path / "s", fa="fa", fb="fb") == {"fa": [1, 2], "fb": [1]}


def test_while_no_slot_is_free_a_table_that_is_to_be_copied_again_is_an_outage(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(server, tmp_path / "s", fa="fa")
    most = int(ask(server, "show max_replication_slots")[0][0])
    ask(server, *(f"select pg_create_physical_replication_slot('fill{n}')" for n in range(most - 1)))
    ask(server, "drop table fa", "create table fa (id int primary key)", "insert into fa values (7)")
    with raises(SourceFailed):
        run(server, tmp_path / "s", fa="fa")
    caplog.clear()

    def free() -> None:
        ends = time.monotonic() + 120
        while time.monotonic() < ends and "ddflow retries it" not in caplog.text:
            time.sleep(0.02)
        ask(server, "select pg_drop_replication_slot('fill0')")

    thread = threading.Thread(target=free)
    thread.start()
    assert run(server, tmp_path / "s", patience=None, fa="fa") == {"fa": [7], "fb": []}
    thread.join()
    assert caplog.text.count("is copied again: it is not the table") == 1


def test_a_table_that_feeds_another_input_now_is_not_followed(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path / "s", fa="fa", fb="fb") == {"fa": [1], "fb": [1]}
    says = r"public\.fa for 'fb': this state reads it for 'fa', but has no copy of it for 'fb'"
    refused(server, tmp_path / "s", SpecError, says, fa="fb", fb="fa")


def test_an_input_that_a_source_feeds_no_more_is_named_until_it_is_dropped(server: Server, tmp_path: Path) -> None:
    state = tmp_path / "s"
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1], "fb": [1]}
    ask(server, "insert into fa values (2)", "insert into fb values (2)")
    says = r"it feeds 'fb' in this state, so their changes would be lost; .* no longer need: dd\.evolve\(.*drop_inputs="
    refused(server, state, SpecError, says, fa="fa")
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1, 2], "fb": [1, 2]}
    dd.evolve(state, drop_outputs=["fb rows"], drop_inputs=["fb"])
    one = dd.Flow()
    one.output("fa rows", one.upserts("fa", {"id": int}, dd.Upsert(key="id"), format=FORMAT))
    ask(server, "insert into fa values (3)", "insert into fb values (3)")
    with one.open(state) as engine:
        engine.run({"shop": dd.sources.postgres(server.url, {"fa": "fa"}, slot="shop")})
        assert sorted(engine.read("fa rows").column("id").to_pylist()) == [1, 2, 3]
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1, 2, 3], "fb": [1, 2, 3]}


def test_an_input_that_was_dropped_and_is_there_again_is_copied_anew(server: Server, tmp_path: Path) -> None:
    state = tmp_path / "s"
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1], "fb": [1]}
    dd.evolve(state, drop_outputs=["fb rows"], drop_inputs=["fb"])
    assert list(dd.inspect(state)["sources"]["shop"]["position"]["tables"]) == ["public.fa"]
    assert run(server, state, fa="fa", fb="fb") == {"fa": [1], "fb": [1]}


def test_a_slot_is_read_under_one_name(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", "fa", fa="fa")
    says = r"the source 'both': this state reads postgresql://.*#shop as 'fa', up to .*; use the name 'fa' for it"
    refused(server, tmp_path / "s", SpecError, says, "both", fa="fa")
    ask(server, "insert into fa values (2)")
    assert run(server, tmp_path / "s", "fa", fa="fa") == {"fa": [1, 2], "fb": []}


def test_a_table_that_is_exchanged_for_another_is_named(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path / "s", fa="fa") == {"fa": [1], "fb": []}
    ask(server, "insert into fa values (3)")
    says = r"read 'fa' from public\.fc: this state reads it from public\.fa, .*that table; name public\.fa; or create"
    refused(server, tmp_path / "s", SpecError, says, fc="fa")
    assert run(server, tmp_path / "s", fa="fa") == {"fa": [1, 3], "fb": []}


def test_a_table_that_was_made_anew_under_its_name_is_copied(server: Server, tmp_path: Path) -> None:
    """In place of the other, between runs and beside one; what the others have up to there is of the same epoch."""
    assert run(server, tmp_path / "s", fa="fa", fb="fb") == {"fa": [1], "fb": [1]}
    exchange = "begin; drop table fa; alter table made rename to fa; commit"
    ask(server, "insert into fa values (2)", "create table made (id int primary key)", "insert into made values (7)")
    ask(server, exchange, "insert into fa values (8)", "insert into fb values (2)")
    assert run(server, tmp_path / "s", fa="fa", fb="fb") == {"fa": [7, 8], "fb": [1, 2]}
    ask(server, "insert into fa values (9)", "delete from fa where id = 7")
    assert run(server, tmp_path / "s", fa="fa", fb="fb") == {"fa": [8, 9], "fb": [1, 2]}
    opened_ = opened(server, dd.inspect(tmp_path / "s")["sources"]["shop"]["position"], "fa", "fb")
    opened_.keyed({"fa": ["id"], "fb": ["id"]}, ["fa", "fb"])
    ask(server, "create table made (id int primary key)", "insert into made values (70)", exchange)
    ask(server, "insert into fa values (80)", "insert into fb values (3)")
    said, position = polled(opened_)
    assert said == [("I fb", 3)] and position["tables"]["public.fa"]["again"]
    opened_.acknowledge(position)
    said, position = polled(opened_)
    assert said == [("I fa", 70), ("I fa", 80)] and "again" not in position["tables"]["public.fa"]
    opened_.close()


def test_a_table_that_is_made_anew_beside_a_run_ends_it_where_its_rows_are_folded(server: Server) -> None:
    source = opened(server, None, "fa")
    source.acknowledge(polled(source)[1])
    ask(server, "begin; drop table fa; create table fa (id int primary key); insert into fa values (7); commit")
    with raises(SourceChanged):
        source.poll(1 << 20)
    source.close()


def test_a_table_may_be_altered_and_emptied(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", fa="fa")
    ask(server, "vacuum full fa", "cluster fa using fa_pkey", "truncate fa", "alter table fa alter id type bigint")
    ask(server, "insert into fa values (5)")
    assert run(server, tmp_path / "s", fa="fa") == {"fa": [5], "fb": []}


def test_another_slot_than_that_of_the_state_is_no_loss(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", fa="fa")
    ask(server, "select pg_create_logical_replication_slot('another', 'wal2json')")
    for slot in ("shopp", "another"):
        refused(server, tmp_path / "s", SpecError, "reads the slot 'shop'; write slot=shop$", "shop", slot, fa="fa")


@mid_test
def test_a_server_that_was_set_back_is_not_followed(tmp_path: Path) -> None:
    """Its files are restored from a copy, with the slot; a server of the test's own."""
    with Server() as set_back:
        ask(set_back, "create table fa (id int primary key)", "insert into fa values (1)")
        run(set_back, tmp_path / "s", fa="fa")
        set_back.stop("fast")
        data, copy = set_back.place / "data", set_back.place / "copy"
        shutil.copytree(data, copy, copy_function=shutil.copy2)
        for each in (copy, *copy.rglob("*")):
            shutil.chown(each, data.owner())
        set_back.start()
        ask(set_back, "insert into fa select generate_series(2, 2000)")
        assert len(run(set_back, tmp_path / "s", fa="fa")["fa"]) == 2000
        set_back.stop("fast")
        shutil.rmtree(data)
        copy.rename(data)
        set_back.start()
        ask(set_back, "insert into fa values (-1)")
        says = r"log ends at .*, but the state has read it up to .*: it was set back.*; .*create a new state"
        refused(set_back, tmp_path / "s", SourceChanged, says, fa="fa")


def test_another_server_with_the_same_slot_is_not_followed(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path / "s", fa="fa")
    with Server() as other:
        ask(other, "create table fa (id int primary key)")
        ask(other, "select pg_create_logical_replication_slot('shop', 'wal2json')")
        refused(other, tmp_path / "s", SourceChanged, r"another server: its system identifier is \d+, but was", fa="fa")
