"""Run every maintenance tool for complete states on a state with every operator.

The expected result comes from an engine in memory with the same events and no maintenance. The tests fail if the plan
lacks an operator; see ``every_operator``.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_test, mid_test, sample
from every_operator import NARROW, missing, plan, schema, untimed
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.engine.checkpoint import StoredInventory
from ddflow.partitions.rescale import rescale
from ddflow.plan.text.codec import compute_node_ids, describe_plan, format_node
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.tools.export import open_contents

COLUMNS = NARROW | {"gone": pa.bool_()}
SPEC = {"delete": dd.tombstone("gone", True)}
SECRET = "Geheimnisstadt-7f3a9c"
"""The city of a row that comes and is deleted."""
DAYS = [None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
CITIES = [None, "Bern", "Basel", "Chur"]
FOREVER = 1 << 40


def step(number: int) -> pa.Table:
    """Events of a step: rows that come, change, leave and come back."""
    rows = [
        {
            "id": (number * 5 + i * 3) % 11,
            "city": CITIES[(number + i) % 4],
            "n": [None, -1, 1, 2, 3][(number * 2 + i) % 5],
            "tags": [None, [], ["a", None], ["b", "a"]][(number + 2 * i) % 4],
            "day": DAYS[(number + i) % 3],
            "gone": (number + i) % 5 == 4,
        }
        for i in range(7)
    ]
    if number in (1, 3):
        hidden = {"city": SECRET, "n": 1, "tags": [SECRET], "day": None, "gone": number == 3}
        rows += [{"id": 99, **hidden}, {"id": 98, **hidden, "n": 2}]
    return pa.Table.from_pylist(rows, schema(COLUMNS))


LOG = [step(number) for number in range(1, 7)]


def flow() -> dd.Flow:
    return plan(COLUMNS, SPEC)


def fed(engine: dd.Engine, first: int = 1, last: int = len(LOG)) -> list[dd.Step]:
    return [engine.step({"a": LOG[time - 1]}, time) for time in range(first, last + 1)]


def plain(table: pa.Table) -> Counter[Any]:
    """Rows as they are, types and all; an export writes equal rows with their number."""
    return Counter(repr(row) for row in table.to_pylist())


def same(one: Any, truth: Any) -> None:
    """Assert that two hold the same, in the same columns, at all times that both can be read at."""
    for name in truth.flow.outputs:
        for time in range(max(one.since, truth.since, 0), one.last + 1):
            table, known = one.read(name, time), READ.setdefault(truth, {})
            if (name, time) not in known:
                there = truth.read(name, time)
                known[name, time] = there.schema, plain(there)
            assert (table.schema, plain(table)) == known[name, time], (name, time)


READ = WeakKeyDictionary[dd.Engine, dict[tuple[str, int], tuple[pa.Schema, Counter[Any]]]]()
"""What a truth holds, once it has been read."""


def told(mine: dd.Step, truth: dd.Step) -> None:
    for name, table in truth.items():
        assert plain(mine[name]) == plain(table) and mine[name].schema == table.schema, name
    assert mine.verdicts.counts == truth.verdicts.counts


def whole(state: Path) -> None:
    """Assert that files and contents are right."""
    report = dd.fsck(state)
    assert report.ok and not report.notes, str(report)


@pytest.fixture(scope="module")
def truth() -> Iterator[dd.Engine]:
    with flow().open(retain=FOREVER) as engine:
        fed(engine)
        yield engine


@pytest.fixture(scope="module")
def steps() -> list[dd.Step]:
    """What each step gives."""
    with flow().open() as engine:
        return fed(engine)


@pytest.fixture(scope="module")
def before_last() -> Iterator[dd.Engine]:
    """As it is before the last two steps."""
    with flow().open(retain=FOREVER) as engine:
        fed(engine, last=len(LOG) - 2)
        yield engine


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of all but the last two steps; not to be written to."""
    state = tmp_path_factory.mktemp("made") / "state"
    with flow().open(state, retain=FOREVER) as engine:
        fed(engine, last=len(LOG) - 2)
    return state


@pytest.fixture
def state(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "state"))


def goes_on(state: Path, truth: dd.Engine, steps: list[dd.Step], first: int = len(LOG) - 1) -> None:
    """Assert that a state takes the last steps as an engine that was never closed, and is whole then."""
    with flow().open(state, retain=FOREVER) as engine:
        for mine, its in zip(fed(engine, first), steps[first - 1 :], strict=True):
            told(mine, its)
        engine._check_invariants()
        same(engine, truth)
    whole(state)


def test_every_operator_is_in_the_plan_and_has_something_to_do(truth: dd.Engine) -> None:
    assert not missing(flow())
    empty = {name for name in truth.flow.outputs if not any(truth.read(name, t).num_rows for t in range(1, 7))}
    assert empty == {"constant"}, "an output that never holds a row proves nothing"


@long_test
def test_closed_and_opened_after_every_step(tmp_path: Path, truth: dd.Engine, steps: list[dd.Step]) -> None:
    for time in range(1, len(LOG) + 1):
        with flow().open(tmp_path / "state", retain=FOREVER) as engine:
            told(engine.step({"a": LOG[time - 1]}, time), steps[time - 1])
            engine._check_invariants()
        with dd.Snapshot.open(tmp_path / "state") as snapshot:
            same(snapshot, truth)
    whole(tmp_path / "state")


def arrangements(state: Path) -> dict[str, list[str]]:
    """By operator that keeps something: the files of its arrangements in the newest version."""
    with closing(LocalStore(state, readonly=True)) as store:
        (inventory,) = load_manifest(store, max(store.list_manifests())).inventories
        stored = StoredInventory.read(store, inventory)
    out = {f"input {name}": [each.file.name for each in c.rows.batches] for name, c in stored.of.inputs.items()}
    for number, kept in stored.of.operators.items():
        out[str(number)] = [each.file.name for a in kept.arrangements for each in a.batches]
    return out


@mid_test
@pytest.mark.sampled
def test_fsck_names_damage_in_the_arrangement_of_every_operator(state: Path) -> None:
    whole(state)
    files = arrangements(state)
    assert len(files) > len(flow().outputs) // 2
    for number in sample(list(files), 6, "damage"):
        for name in files[number][:1]:
            path = state / "blobs" / name
            right = path.read_bytes()
            path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
            wrong = {each.file for each in dd.fsck(state).problems}
            assert any(one.endswith(name) for one in wrong), (number, wrong)
            path.write_bytes(right)
    whole(state)


def test_verify_agrees_with_the_log_and_with_no_other(state: Path) -> None:
    log = LOG[:-2]
    assert dd.verify(state, {"a": log}).ok
    assert not dd.verify(state, {"a": log[:-1]}).ok


def one_of_each(verbs: dict[int, str]) -> list[int]:
    """Of the operators by number, one of each verb; all when soaking."""
    return [n for verb in sorted({*verbs.values()}) for n in sample([n for n in verbs if verbs[n] == verb], 1, verb)]


@mid_test
@pytest.mark.sampled
def test_verify_names_the_operator_whose_rows_are_not_those_of_its_input() -> None:
    """One at a time misses a step; files and hashes are right, and only what it holds is wrong."""

    def kept(engine: dd.Engine) -> list[Any]:
        each = engine.dataflow.graph.keeping.items()
        return [(node, running) for node, running in each if running.arrangements and not node.as_it_came]

    def held(running: Any) -> list[str]:
        return sorted(repr(row) for piece in running.output_arrangement.iterate_rows() for row in piece.to_pylist())

    with flow().open() as engine:
        fed(engine, last=3)
        before = [held(running) for _, running in kept(engine)]
        fed(engine, 4, 4)
        stale = [mine != held(running) for mine, (_, running) in zip(before, kept(engine), strict=True)]
    verbs = [node.verb for node, _ in kept(engine)]
    named = set()
    for number in one_of_each({n: verbs[n] for n, differs in enumerate(stale) if differs}):
        with flow().open(store := MemoryStore()) as engine:
            fed(engine, last=3)
            node, running = kept(engine)[number]
            missed = partial(lambda apply, changes, *times: apply([], *times), running.apply)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(running, "apply", missed)
                fed(engine, 4, 4)
            said = format_node(describe_plan(engine.flow), compute_node_ids(engine.flow)[node], "this state")
        assert dd.verify(store, {}).operators[said] > 0, (number, said)
        named.add(node.verb)
    assert named >= {"agg", "arrange", "count", "distinct", "ordered_agg", "threshold", "to_upserts", "top", "versions"}


def test_export_writes_what_can_be_read(state: Path, before_last: dd.Engine) -> None:
    with dd.Snapshot.open(state) as snapshot:
        for name in before_last.flow.outputs:
            for time in range(1, len(LOG) - 1):
                columns, tables = open_contents(snapshot, name, time)
                table = pa.concat_tables([each.select(columns.names) for each in tables])
                rows = before_last.read(name, time).select(columns.names)
                assert plain(table) == plain(rows), (name, time)
        columns, tables = open_contents(snapshot, "a")
        exported = pa.concat_tables([each.select(columns.names) for each in tables])
        assert plain(exported) == plain(before_last.read("rows").select(columns.names))


def test_migrate_gives_the_same_and_another_output(state: Path, tmp_path: Path) -> None:
    wanted = flow()
    wanted.output("other", wanted.inputs["a"].count("day"))
    log = [{"a": table} for table in LOG[:-2]]
    done = dd.migrate(state, tmp_path / "new", wanted, log)
    assert done.new == ["other"] and not done.whole and not done.gone
    assert {name for name, table in done.tables.items() if table.num_rows} == {"other"}
    whole(tmp_path / "new")


@mid_test
def test_a_state_that_was_rolled_back_goes_on(state: Path, truth: dd.Engine, steps: list[dd.Step]) -> None:
    with flow().open(state, retain=FOREVER) as engine:
        fed(engine, len(LOG) - 1, len(LOG) - 1)
    assert dd.rollback(state).manifest.epoch == len(LOG) - 2
    goes_on(state, truth, steps)


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_split_and_joined_it_holds_the_same(
    state: Path, truth: dd.Engine, before_last: dd.Engine, steps: list[dd.Step], memory: str | None
) -> None:
    for partitions in (3, 2, 1):
        rescale(state, partitions, memory=memory)
        whole(state)
        with dd.Snapshot.open(state) as snapshot:
            same(snapshot, before_last)
    goes_on(state, truth, steps)


def secrets(state: Path) -> list[str]:
    """The files in which the city of a deleted row is."""
    return [str(path) for path in state.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@mid_test
def test_what_was_forgotten_is_in_no_file_of_any_operator(
    state: Path, truth: dd.Engine, before_last: dd.Engine, steps: list[dd.Step]
) -> None:
    kept = {Path(path).name for path in secrets(state)}
    holding = [number for number, names in arrangements(state).items() if kept & set(names)]
    assert len(holding) > 3
    with flow().open(state, retain=FOREVER) as engine:
        engine.compact(forget=True)
        engine._check_invariants()
        same(engine, before_last)
    assert secrets(state) == []
    whole(state)
    goes_on(state, truth, steps)


def test_inspect_stats_and_explain_know_every_operator(state: Path) -> None:
    stateful = {verb for verb, operator in untimed().items() if operator.keeps}
    known = dd.inspect(state)
    assert all(each["versions"] and each["files"] for each in known["operators"].values())
    assert len(known["operators"]) == len(arrangements(state)) - len(known["inputs"])
    with flow().open(state) as engine:
        lines = {line.split(" ", 1)[0] for line in str(engine.stats()).splitlines()}
        explained = str(engine.explain())
    for verb in stateful:
        assert any(f".{verb}(" in name for name in known["operators"]), verb
        assert verb in lines, verb
    for node in flow().nodes:
        assert node.verb in explained, node


def test_estimate_has_a_figure_of_the_input() -> None:
    assert dd.estimate(pa.concat_tables(LOG), dd.Upsert(key="id", **SPEC))


VERBS: dict[str, Callable[[str], list[str]]] = {
    "inspect": lambda state: ["inspect", state],
    "fsck": lambda state: ["fsck", state],
    "verify": lambda state: ["verify", state, *(f"{time}.parquet" for time in range(1, len(LOG) - 1))],
    "export": lambda state: ["export", state, "-o", "exported/"],
    "rescale": lambda state: ["rescale", state, "--partitions", "2"],
    "rollback": lambda state: ["rollback", state, "--to-epoch", "3", "--yes"],
    "evolve": lambda state: ["evolve", state, "--types", "day=string"],
    "gc": lambda state: ["gc", state, "--forget"],
    "why": lambda state: ["why", state, "3"],
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("verb", VERBS)
def test_the_verbs_of_the_shell_take_such_a_state(
    state: Path, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for time, table in enumerate(LOG[:-2], 1):
        pq.write_table(table, f"{time}.parquet")
    result = CliRunner().invoke(app, VERBS[verb]("state"))
    assert result.exit_code == 0, (result.output, result.exception)
    whole(state)


def test_a_state_goes_on_to_retain_what_it_did(tmp_path: Path) -> None:
    made = dd.Flow()
    made.output("people", made.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")))

    def step(time: int, **options: Any) -> int:
        with made.open(tmp_path / "state", **options) as engine:
            engine.step({"people": [{"id": 1, "city": f"c{time}"}]}, time)
            return engine.dataflow.since

    assert step(10, retain=3) == 7
    assert [step(time) for time in (11, 12)] == [8, 9]
    with made.open(tmp_path / "state") as engine:
        assert engine.read("people", as_of=10).to_pylist() == [{"id": 1, "city": "c10", "_diff": 1}]
    assert (step(13, retain=0), step(14)) == (13, 14)
