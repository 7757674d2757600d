"""Test migration: the old output plus the net difference is the new output, and nothing else changes.

Engines in memory compute both expected outputs from the same log.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.errors import NotReadable, NullKey, PlanChanged, SpecError, StateRefused
from ddflow.storage.memory import MemoryStore
from ddflow.tools.migrate import migrate

SCHEMA = {"id": pa.int64(), "region": pa.int64(), "at": pa.int64(), "amount": pa.int64()}


def plan(spec: dd.Upsert, least: int = 0, columns: list[str] | None = None) -> dd.Flow:
    flow = dd.Flow()
    orders = flow.upserts("orders", SCHEMA, spec)
    large = orders.filter(f"amount >= {least}")
    flow.output("large", large.project(columns or ["id", "region", "amount"]))
    flow.output("by_region", large.project(["region"]).count())
    return flow


def run(flow: dd.Flow, log: list[dict[str, Any]], state: Any = None) -> dict[str, Counter[Any]]:
    """What each output holds after a log."""
    with flow.open(state) as engine:
        for time, inputs in enumerate(log, 1):
            if flow.holds_back:
                engine.push(inputs)
            else:
                engine.step(inputs, time)
        if flow.holds_back:
            engine.advance_to(10)
        return {name: counted(engine.read(name)) for name in flow.outputs}


def counted(table: pa.Table) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for row in table.drop_columns([n for n in ("_time",) if n in table.column_names]).to_pylist():
        diff = row.pop("_diff")
        out[tuple(row.items())] += diff
    return +out if all(n >= 0 for n in out.values()) else out


SPECS = {
    "id": dd.Upsert(key="id"),
    "id by at": dd.Upsert(key="id", order_by="at"),
    "id and region": dd.Upsert(key=["id", "region"], order_by="at"),
    "by time": dd.Upsert(key="id", time="at"),
}
events = st.fixed_dictionaries(
    {"id": st.integers(0, 4), "region": st.integers(0, 2), "at": st.integers(0, 9), "amount": st.integers(0, 3)}
)
logs = st.lists(st.lists(events, max_size=6), min_size=1, max_size=4).map(
    lambda epochs: [{"orders": pa.Table.from_pylist(rows, pa.schema(SCHEMA))} for rows in epochs]
)


@given(logs, st.sampled_from(list(SPECS)), st.sampled_from(list(SPECS)), st.integers(0, 2), st.integers(0, 2))
def test_the_old_output_and_the_net_difference_are_the_new_output(
    log: list[dict[str, Any]], one: str, other: str, least: int, most: int
) -> None:
    before, after = plan(SPECS[one], least), plan(SPECS[other], most)
    old, new = MemoryStore(), MemoryStore()
    held, wanted = run(before, log, old), run(after, log)
    kept = dict(old.shared.blobs), dict(old.shared.manifests)
    done = migrate(old.reopen(), new, after, log)
    assert (old.shared.blobs, old.shared.manifests) == kept
    for name in ("large", "by_region"):
        net = counted(done.tables[name])
        both = Counter(held[name])
        for row, diff in net.items():
            both[row] += diff
        assert {row: n for row, n in both.items() if n} == wanted[name], name
        # It is net: nothing that stays is in it.
        assert all(held[name][row] != wanted[name][row] for row in net)
        assert set(done.tables[name].column("_time").to_pylist()) <= {done.last}
        assert counted(dd.read(new.reopen(), name)) == wanted[name]
    assert (done.new, done.whole, done.gone) == ([], [], [])
    if not before.holds_back and not after.holds_back:
        assert done.last == len(log) + 1 and done.epoch == len(log)  # above the old state's last time


def test_the_new_state_goes_on() -> None:
    old, new = MemoryStore(), MemoryStore()
    log = [{"orders": pa.table({"id": [1], "region": [1], "at": [1], "amount": [n]})} for n in range(3)]
    run(plan(SPECS["id"]), log, old)
    with plan(SPECS["id"]).open(old.reopen()) as engine:
        engine.step({}, 50)
    migrate(old.reopen(), new, after := plan(SPECS["id by at"], 1), log)
    with after.open(new.reopen()) as engine:
        assert (engine.epoch, engine.last) == (3, 51)
        engine.step(log[0], 52)
        engine._check_invariants()


@pytest.mark.parametrize(("asked", "kept"), [(None, 2), (0, 0), (5, 5)])
def test_the_new_state_keeps_as_much_history_as_the_old_one(asked: int | None, kept: int) -> None:
    log = [{"orders": pa.table({"id": [1], "region": [1], "at": [1], "amount": [n]})} for n in range(6)]
    with plan(SPECS["id"]).open(old := MemoryStore(), retain=2) as engine:
        for time, inputs in enumerate(log, 1):
            engine.step(inputs, time)
    migrate(old, new := MemoryStore(), after := plan(SPECS["id"], 1), log, retain=asked)
    with after.open(new.reopen()) as engine:
        assert (engine.last, engine.since) == (7, 7)
        with raises(NotReadable):
            engine.read("large", as_of=6)
        for time in range(8, 14):
            engine.step(log[0], time)
        assert engine.since == 13 - kept


def test_a_log_is_a_list_of_calls() -> None:
    with raises(SpecError):
        migrate(MemoryStore(), MemoryStore(), plan(SPECS["id"]), {"orders": []})  # type: ignore[arg-type]
    with raises(SpecError):
        dd.Snapshot(MemoryStore())


def test_outputs_that_cannot_be_compared_are_refused_by_name_or_given_whole() -> None:
    old, log = MemoryStore(), [{"orders": pa.table({"id": [1], "region": [1], "at": [1], "amount": [5]})}]
    run(plan(SPECS["id"]), log, old)
    after = plan(SPECS["id"], 0, ["id", "amount"])
    after.output("more", after.inputs["orders"].project(["region"]))
    new = MemoryStore()
    with raises(PlanChanged):
        migrate(old.reopen(), new, after, log)
    assert not new.shared.blobs and not new.shared.manifests
    done = migrate(old.reopen(), new, after, log, whole=True)
    assert (done.new, done.whole, done.gone) == (["more"], ["large"], [])
    assert done.tables["large"].to_pylist() == [{"id": 1, "amount": 5, "_time": 2, "_diff": 1}]
    assert done.tables["more"].num_rows == 1 and done.tables["by_region"].num_rows == 0
    with raises(NotReadable):
        migrate(old.reopen(), MemoryStore(), after, log, "lage")
    assert list(migrate(old.reopen(), MemoryStore(), after, log, "by_region").tables) == ["by_region"]


@pytest.mark.parametrize("there", [False, True])
def test_when_it_fails_nothing_of_the_new_state_is_left(tmp_path: Path, there: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    good = {"orders": pa.table({"id": [1], "region": [1], "at": [1], "amount": [5]})}
    bad = {"orders": pa.table({"id": pa.array([None], pa.int64()), "region": [1], "at": [1], "amount": [5]})}
    run(plan(SPECS["id"]), [good], old)
    if there:
        new.mkdir(mode=0o700)
    with pytest.raises(NullKey):
        migrate(old, new, plan(SPECS["id"], 3), [good, bad])
    assert new.exists() == there and list(new.rglob("*")) == []
    migrate(old, new, plan(SPECS["id"], 3), [good])
    with raises(StateRefused):
        migrate(old, new, plan(SPECS["id"], 3), [good])
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine" / "notes").write_text("mine")
    with pytest.raises(StateRefused):
        migrate(old, tmp_path / "mine", plan(SPECS["id"], 3), [good])
    assert (tmp_path / "mine" / "notes").read_text() == "mine"
    assert dd.read(new, "large").num_rows == 1


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1.csv").write_text("id,city,at\n1,Bern,5\n2,Basel,5\n")
    (tmp_path / "2.csv").write_text("id,city,at\n1,Chur,4\n3,Bern,6\n")

    def verb(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    verb("diff", "1.csv", "2.csv", "--key", "id", "--state", "old", "-o", "old.csv", "--retain", "3")
    words = ["migrate", "old", "new", "1.csv", "2.csv", "--key", "id", "--order-by", "at"]
    result = verb(*words, "-o", "-")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"id": 1, "city": "Chur", "at": 4, "_time": 3, "_diff": -1},
        {"id": 1, "city": "Bern", "at": 5, "_time": 3, "_diff": 1},
    ]
    assert "new is at epoch 2: 2 updates, net, against old" in result.stderr
    verb("migrate", "old", "none", *words[3:], "-o", "none.csv", "--retain", "0")
    assert [dd.Snapshot.open(each).manifest.retain for each in ("old", "new", "none")] == [3, 3, 0]
    assert "a state already exists there" in verb(*words, code=1).stderr
    # It goes on as if `diff` had made it.
    result = verb("diff", "1.csv", "--key", "id", "--order-by", "at", "--state", "new", "-o", "-")
    assert "now at epoch 3" in result.stderr and "noop 2" in result.stderr
    counts = ["migrate", "old", "counts", "1.csv", "2.csv", "--key", "id", "--by", "city", "-o", "counts.csv"]
    assert "columns" in verb(*counts, code=1).stderr and not (tmp_path / "counts").exists()
    done = json.loads(verb(*counts, "--whole", "--json").stdout)
    assert (done["epoch"], done["last"], done["written"], done["whole"]) == (2, 3, 3, True)
    # When the output cannot be written there is no new state either.
    words[2] = "other"
    (tmp_path / "2.csv").write_text("id,city,at\n,Chur,4\n")
    assert "2.csv" in verb(*words, "-o", "net.csv", code=1).stderr
    assert not (tmp_path / "other").exists() and not (tmp_path / "net.csv").exists()
    assert "would both go to stdout" in re.sub(r"[│\s]+", " ", verb(*words, "--json", code=2).output)
