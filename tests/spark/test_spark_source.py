"""Test reading a state on Spark: batches beside local reads, and streams that follow its epochs across restarts."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from parts_by_hand import Hands
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, Not
from s3_server import Moto, moto, options
from spark_session import counted, setting
from test_spark import city_flow, orders_of

import ddflow as dd
import spark_bridge
from ddflow.engine.snapshot import Snapshot
from ddflow.errors import (
    DdflowError,
    MissingExtra,
    NotReadable,
    SchemaMismatch,
    SnapshotExpired,
    SpecError,
    StateRefused,
    TimeWentBack,
)
from ddflow.partitions.driver_epochs import read_contents
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.s3 import S3Store
from ddflow.tools.rollback import rollback
from spark_bridge.monitoring import QueryStats
from spark_bridge.sources.base import LIMITS
from spark_bridge.sources.state import DdflowSource
from spark_bridge.types import build_transfer_schema, spark_schema, to_spark_types

__all__ = ["moto"]

pytestmark = pytest.mark.together("spark")


class Options(dict[str, str]):
    """Options as Spark hands them over: whatever their case."""

    def __init__(self, **given: Any) -> None:
        super().__init__({name.lower(): str(value) for name, value in given.items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def source(**options: Any) -> DdflowSource:
    """A data source, as Spark makes it."""
    return DdflowSource(Options(**options))


def batch(schema: Any = None, filters: list[Any] | None = None, **options: Any) -> pa.Table:
    """All rows of a batch, its parts read one after the other in this process."""
    made = source(**options)
    schema = schema or made.schema()
    reader: Any = made.reader(schema)
    if filters is not None:
        reader.rest = list(reader.pushFilters(filters))
    batches = [b for part in reader.partitions() for b in reader.read(part)]
    arrow = build_transfer_schema(reader.asked.columns, "a test")
    return pa.Table.from_batches(batches, arrow)


class Query:
    """A streaming query by hand: what Spark asks a reader, with restarts."""

    def __init__(self, **options: Any) -> None:
        self.options, self.sums = options, Counter[tuple[Any, ...]]()
        self.batches, self.log = 0, list[tuple[Any, Any]]()
        self.restart()
        self.at = self.follower.initialOffset()

    def restart(self) -> None:
        """Begin again from the offsets."""
        made = source(**self.options)
        self.follower: Any = made.streamReader(made.schema())

    def rows(self, start: Any, end: Any) -> Counter[tuple[Any, ...]]:
        """The updates between two offsets."""
        tables = [
            pa.Table.from_batches([b])
            for part in self.follower.partitions(start, end)
            for b in self.follower.read(part)
        ]
        return counted(pa.concat_tables(tables)) if tables else Counter()

    def poll(self) -> bool:
        """One batch, if there is anything new."""
        if sys.modules.get(LIMITS, self) is None:  # before 4.2, Spark does not say where a batch starts
            end = self.follower.latestOffset()
        else:
            end = self.follower.latestOffset(self.at, self.follower.getDefaultReadLimit())
        if end == self.at:
            return False
        self.log.append((self.at, end))
        for (*row, _, diff), n in self.rows(self.at, end).items():
            self.sums[tuple(row)] += diff * n
        self.at, self.batches = end, self.batches + 1
        return True

    def holds(self, table: pa.Table) -> None:
        """What came adds up to a table of rows and diffs."""
        held = Counter({tuple(row): diff * n for (*row, diff), n in counted(table).items()})
        assert {row: n for row, n in self.sums.items() if n} == dict(held)


def plainly(table: pa.Table, name: str = "out") -> Counter[tuple[Any, ...]]:
    """A table's rows as Spark shows them, without their time."""
    batches = [to_spark_types(each, name) for each in table.combine_chunks().to_batches()]
    whole = pa.Table.from_batches(batches, build_transfer_schema(table.schema, name))
    return counted(whole.drop([n for n in ("_time",) if n in whole.column_names]))


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def hands_of(state: str, partitions: int | None, flow: dd.Flow | None = None, **options: Any) -> Hands:
    """A writer of many partitions."""
    return Hands(flow or city_flow(), LocalStore(state), partitions, random.Random(7), **options)


def test_a_batch_is_what_a_read_gives(state: str) -> None:
    hands = hands_of(state, 3, retain=5)
    for epoch in (1, 2, 3):
        hands.epoch({"orders": orders_of(80, seed=epoch)})
    with Snapshot.open(state) as snapshot:
        for name in ("paid", "by_city", "sizes", "all", "diff", "orders"):
            now, then = batch(path=state, output=name), batch(path=state, output=name, asOf=2)
            assert set(now.column("_time").to_pylist()) <= {3} and set(then.column("_time").to_pylist()) <= {2}
            assert plainly(now) == plainly(snapshot.read(name)), name
            assert plainly(then) == plainly(snapshot.read(name, 2)), name
            came = batch(path=state, output=name, changesFrom=1, changesTo=2)
            assert plainly(came) == plainly(snapshot.changes(name, 1, 2)), name
            assert counted(batch(path=state, output=name, epoch=2)) == counted(then), name
            assert plainly(batch(path=state, output=name, changesFrom=2)) == plainly(snapshot.changes(name, 2, 3))
    parts = {
        name: len(source(path=state, output=name).reader(source(path=state, output=name).schema()).partitions())
        for name in ("paid", "by_city", "diff")
    }
    assert parts == {"paid": 3, "by_city": 3, "diff": 1}
    hands.close()


def test_times_that_are_days_are_given_and_shown_as_days(state: str) -> None:
    flow = dd.Flow()
    visits = flow.upserts("visits", {"id": int, "city": str, "day": date}, dd.Upsert("id", time="day"))
    flow.output("by_city", visits.count("city"))
    with flow.open(state, retain=1) as engine:
        for n in (1, 2, 3):
            engine.push({"id": [n], "city": ["Bern"], "day": [date(2024, 1, n)]})
            engine.advance_to(date(2024, 1, n + 1))
    then = {"city": ["Bern"], "count": [2], "_time": [date(2024, 1, 2)], "_diff": [1]}
    assert batch(path=state, asOf="2024-01-02").to_pydict() == batch(path=state, asOf=19724).to_pydict() == then
    came = batch(path=state, changesFrom="2024-01-02", changesTo="2024-01-03")
    assert sorted(came.column("count").to_pylist()) == [2, 3]
    for wanted, error, message in (
        ({"asOf": "2024-01-01"}, NotReadable, "at 2024-01-01: since is 2024-01-02: .*not including, 2024-01-04"),
        ({"asOf": "soon"}, SchemaMismatch, "asOf='soon'.*not a time of type date32.*like 1970-01-01"),
        (
            {"changesFrom": "2024-01-03", "changesTo": "2024-01-02"},
            TimeWentBack,
            "from 2024-01-03: the changes end at 2024-01-02",
        ),
    ):
        with pytest.raises(error, match=message):
            batch(path=state, **wanted)
    assert "frontier 2024-01-04" in str(QueryStats.read(state))


def test_columns_are_chosen_by_a_schema(state: str) -> None:
    hands = hands_of(state, 2)
    hands.epoch({"orders": orders_of(50)})
    hands.close()
    own = source(path=state, output="paid").schema()
    some = type(own)([own["city"], own["_diff"]])
    assert batch(some, path=state, output="paid").column_names == ["city", "_diff"]
    wrong = spark_schema(pa.schema({"city": pa.int64()}), "a test")
    with raises(SchemaMismatch):
        batch(wrong, path=state, output="paid")
    with raises(SchemaMismatch):
        batch(spark_schema(pa.schema({"town": pa.int64()}), "a test"), path=state, output="paid")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, SpecError, "it has the outputs .*'paid'.*choose one"),
        ({"output": "payed"}, NotReadable, "did you mean 'paid'"),
        ({"output": "orders.marked"}, NotReadable, "."),
        ({"output": "paid", "asof": 0}, NotReadable, "since is 2"),
        ({"output": "paid", "asof": 3}, NotReadable, "the frontier is 3.*mode 'changelog'"),
        ({"output": "paid", "asof": "soon"}, SchemaMismatch, "asOf='soon'.*not an int64 time"),
        ({"output": "paid", "asof": 2, "changesfrom": 2}, SpecError, "use one kind of option"),
        ({"output": "paid", "changesto": 2}, SpecError, "changesFrom is missing"),
        ({"output": "paid", "changesfrom": 0}, NotReadable, "since is 2"),
        ({"output": "paid", "epoch": 7}, SnapshotExpired, "epoch 7"),
        ({"output": "paid", "asoff": 2}, SpecError, "did you mean 'asOf'"),
        ({"output": "paid", "startingepoch": 2}, SpecError, "use readStream"),
        ({"output": "paid", "trust": "all"}, SpecError, "'owner' or 'group'"),
        ({"output": "paid", "pushdown": "perhaps"}, SpecError, "'true' or 'false'"),
    ],
)
def test_what_cannot_be_read_says_why(
    state: str, options: dict[str, Any], error: type[DdflowError], message: str
) -> None:
    hands = hands_of(state, 2)
    for epoch in (1, 2):
        hands.epoch({"orders": orders_of(20, seed=epoch)})
    hands.close()
    with pytest.raises(error, match=f"(?s){message}"):
        batch(path=state, **options)


def test_a_state_that_is_none_and_options_of_streams(state: str) -> None:
    with pytest.raises(StateRefused):
        source(path=state).schema()
    with raises(SpecError):
        source().schema()
    hands = hands_of(state, 2)
    assert batch(path=state, output="paid").num_rows == 0 and not Query(path=state, output="paid").poll()
    for wanted, error, message in (
        ({"output": "orders"}, NotReadable, "it is an input"),
        ({"output": "paid", "maxEpochsPerTrigger": 0}, SpecError, "1 or more"),
        ({"output": "paid", "startingEpoch": "soon"}, SpecError, "'earliest' or 'latest'"),
        ({"output": "paid", "asOf": 1}, SpecError, "omit it, or use read"),
        ({"output": "paid", "startingEpoch": 7}, SnapshotExpired, "the state keeps only the updates of the epochs"),
    ):
        with pytest.raises(error, match=message):
            Query(path=state, **wanted)
    hands.close()


def test_filters_spare_rows_and_partitions(state: str) -> None:
    hands = hands_of(state, 8)
    hands.epoch({"orders": orders_of(200)})
    hands.close()
    whole = batch(path=state, output="orders").to_pylist()
    options = {"path": state, "output": "orders", "pushdown": "true"}

    def reader(filters: list[Any]) -> tuple[Any, list[Any]]:
        made = source(**options)
        found: Any = made.reader(made.schema())
        return found, list(found.pushFilters(filters))

    for row in whole[:10]:
        found, rest = reader([IsNotNull(("id",)), EqualTo(("id",), row["id"])])
        assert rest == [] and len(found.partitions()) == 1
        table = batch(filters=[EqualTo(("id",), row["id"])], **options)
        assert table.column("id").to_pylist() == [row["id"]]
    found, rest = reader([In(("id",), (1, 2, 3))])
    assert rest == [] and 1 <= len(found.partitions()) <= 3
    assert sorted(batch(filters=[In(("id",), (1, 2, 3))], **options).column("id").to_pylist()) == sorted(
        row["id"] for row in whole if row["id"] in (1, 2, 3)
    )
    kept = [EqualTo(("amount",), 1.5), Not(EqualTo(("id",), 1)), EqualTo(("id", "x"), 1), EqualTo(("id",), 2**70)]
    found, rest = reader([*kept, GreaterThan(("id",), 5), LessThanOrEqual(("city",), "Bern")])
    assert rest == kept and len(found.partitions()) == 8
    table = batch(filters=[GreaterThan(("id",), 5), LessThanOrEqual(("city",), "Bern")], **options)
    expected = [row["id"] for row in whole if row["id"] > 5 and row["city"] is not None and row["city"] <= "Bern"]
    assert sorted(table.column("id").to_pylist()) == sorted(expected) != []


@long_on_spark
@pytest.mark.parametrize(
    ("partitions", "grace", "folder", "most"),
    [
        (3, 60, False, None),
        (3, 0, False, 1),
        (1, 0, True, 2),
        (4, 60, True, None),
        (2, 0, False, 3),
    ],
)
def test_a_stream_adds_up_to_the_contents(
    state: str, tmp_path: Path, partitions: int, grace: float, folder: bool, most: int | None
) -> None:
    chance = random.Random(partitions)
    outputs = str(tmp_path / "outputs") if folder else None
    hands = hands_of(state, partitions, outputs=outputs, grace=grace)
    hands.outputs = lambda committed: {}  # type: ignore[method-assign]  # they are not in the store
    limit = {} if most is None else {"maxEpochsPerTrigger": most}
    queries = {name: Query(path=state, output=name, **limit) for name in ("paid", "by_city", "diff")}
    for epoch in range(1, 13):
        hands.epoch({"orders": orders_of(chance.choice([0, 30, 60]), seed=epoch)})
        late = queries["late"] if epoch > 5 else queries.setdefault("late", Query(path=state, output="paid"))
        for query in queries.values():
            if query is not late or epoch == 5:
                query.restart() if chance.random() < 0.4 else None
                while chance.random() < 0.7 and query.poll():
                    pass
                while int(query.at["epoch"]) < epoch - 4:
                    assert query.poll()
    for name, query in queries.items():
        if name != "late":
            while query.poll():
                pass
            query.holds(dd.read(state, query.options["output"]))
            assert most is None or query.batches >= 10 // most
    hands.close()


@mid_on_spark
@pytest.mark.parametrize("grace", [0, 60])
def test_a_batch_that_is_read_again_is_the_same(state: str, grace: float) -> None:
    hands = hands_of(state, 3, grace=grace)
    for epoch in (1, 2, 3):
        hands.epoch({"orders": orders_of(60, seed=epoch)})
    queries = [Query(path=state, output=name) for name in ("paid", "by_city", "diff")]
    first = []
    for query in queries:
        assert query.poll()
        first.append(query.rows(*query.log[0]))
    for epoch in (4, 5, 6, 7):
        hands.epoch({"orders": orders_of(60, seed=epoch)})
        for query, rows in zip(queries, first, strict=True):
            query.restart()
            assert query.rows(*query.log[0]) == rows != Counter()
    assert (len(LocalStore(state, create=False, readonly=True).list_manifests()) > 6) == (grace > 0)
    for query in queries:
        query.poll()
        again = query.rows(*query.log[1])
        hands.epoch({"orders": orders_of(60, seed=20)})
        assert query.rows(*query.log[1]) == again != Counter()
    hands.close()


def test_epochs_that_are_gone_and_states_that_went_back(state: str) -> None:
    hands = hands_of(state, 2)
    hands.epoch({"orders": orders_of(30)})
    slow, fast, back = (Query(path=state, output="paid") for _ in range(3))
    for query in (slow, fast, back):
        assert query.poll() and not query.poll()
    for epoch in range(2, 13):
        hands.epoch({"orders": orders_of(30, seed=epoch)})
        assert fast.poll()
    with raises(SnapshotExpired):
        slow.poll()
    named = Query(path=state, output="paid", startingEpoch=7)
    assert named.poll() and named.log == [({"epoch": 6, "mark": named.log[0][0]["mark"]}, fast.at)]
    latest = Query(path=state, output="paid", startingEpoch="latest")
    assert not latest.poll()
    coming = Query(path=state, output="paid", startingEpoch=13)
    assert not coming.poll()
    hands.close()
    rollback(LocalStore(state), epoch=11)
    with raises(SnapshotExpired):
        fast.poll()
    hands = hands_of(state, 2)
    for epoch in (12, 13):
        hands.epoch({"orders": orders_of(30, seed=50 + epoch)})
    for query in (fast, latest):
        with raises(SnapshotExpired):
            query.poll()
    hands.close()


def test_an_output_that_is_taken_out_ends_those_who_follow_it_and_no_others(state: str) -> None:
    hands = hands_of(state, 2)
    paid, cities = (Query(path=state, output=name) for name in ("paid", "by_city"))
    hands.epoch({"orders": orders_of(30)})
    assert paid.poll() and cities.poll()
    hands.close()
    dd.evolve(state, drop_outputs="by_city")
    assert not paid.poll()
    with raises(SnapshotExpired):
        cities.poll()
    hands = hands_of(state, None)
    hands.epoch({"orders": orders_of(30, seed=2)})
    hands.close()
    assert paid.poll()
    with raises(SnapshotExpired):
        cities.poll()
    for query in (paid, Query(path=state, output="by_city"), Query(path=state, output="by_city", startingEpoch=1)):
        query.poll()
        query.holds(dd.read(state, query.options["output"]))


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a PySpark before 4.2 lacks."""
    monkeypatch.setitem(sys.modules, LIMITS, None)


@pytest.mark.usefixtures("older")
def test_an_older_spark_follows_all_there_is(state: str) -> None:
    hands = hands_of(state, 3)
    queries = [Query(path=state, output=name) for name in ("paid", "by_city", "diff")]
    assert not any(query.poll() for query in queries)
    latest = Query(path=state, output="paid", startingEpoch="latest")
    with raises(MissingExtra):
        Query(path=state, output="paid", maxEpochsPerTrigger=2)
    for epoch in range(1, 8):
        hands.epoch({"orders": orders_of(40, seed=epoch)})
        for query in queries if epoch in (1, 2, 5, 7) else ():
            query.restart()
            assert query.poll() and not query.poll()
    for query in queries:
        query.holds(dd.read(state, query.options["output"]))
    assert latest.poll()
    assert latest.sums == queries[0].sums
    hands.close()
    rollback(LocalStore(state), epoch=6)
    with raises(SnapshotExpired):
        latest.poll()
    hands = hands_of(state, 3)
    hands.epoch({"orders": orders_of(40, seed=50)})
    with raises(SnapshotExpired):
        latest.poll()
    hands.close()


def test_a_stream_of_available_now_goes_no_further(state: str) -> None:
    from pyspark.sql.streaming import datasource as limits  # from 4.2 on

    hands = hands_of(state, 2)
    for epoch in (1, 2, 3):
        hands.epoch({"orders": orders_of(30, seed=epoch)})
    query = Query(path=state, output="paid", startingEpoch=1, maxEpochsPerTrigger=2)
    query.follower.prepareForTriggerAvailableNow()
    hands.epoch({"orders": orders_of(30, seed=4)})
    while query.poll():
        pass
    assert [end["epoch"] for _, end in query.log] == [2, 3]
    assert query.follower.getDefaultReadLimit() == limits.ReadMaxFiles(2)
    query.restart()
    assert query.follower.latestOffset(query.at, limits.ReadAllAvailable())["epoch"] == 4
    hands.close()


def test_side_outputs_and_upserts_are_followed_too(state: str, tmp_path: Path) -> None:
    hands = hands_of(state, 2)
    names = [*city_flow().side_outputs()]
    query = Query(path=state, output=names[0])
    for epoch in (1, 2):
        hands.epoch({"orders": orders_of(60, seed=epoch)})
        query.poll()
    assert query.batches == 2
    late = Query(path=state, output=names[0])  # a state holds no such rows, so it begins with the epochs that are kept
    assert late.poll() and late.log == [({"epoch": 0, "mark": ""}, query.log[-1][1])]
    assert late.sums == query.sums != Counter()
    with raises(NotReadable):
        batch(path=state, output=names[0])
    hands.close()
    flow, place = dd.Flow(), str(tmp_path / "back")
    people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id"))
    flow.output("out", people.to_upserts("id"))
    with flow.open(place) as engine:
        engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Chur"]})}, 5)
        upserts = Query(path=place)
        assert upserts.poll()
        with Snapshot.open(place) as snapshot:
            assert upserts.rows(*upserts.log[0]) == counted(read_contents(snapshot, "out"))
        step = engine.step({"people": pa.table({"id": [2], "city": ["Bern"]})}, 6)
        assert upserts.poll()
        assert upserts.rows(*upserts.log[1]) == counted(step["out"])


def test_a_state_in_a_bucket_is_read_too(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://{moto.bucket()}/states/orders"
    for name, value in (("ENDPOINT_URL", moto.url), ("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "key")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flow = city_flow()
    with flow.open(S3Store(url, options=options(moto.url))) as engine:
        engine.step({"orders": orders_of(50)}, 1)
        query = Query(path=url, output="by_city")
        assert query.poll()
        engine.step({"orders": orders_of(50, seed=8)}, 2)
        assert query.poll() and not query.poll()
        query.holds(engine.read("by_city"))
        assert plainly(batch(path=url, output="paid")) == plainly(engine.read("paid"))


# On Spark


KINDS = {
    "id": pa.int64(),
    "small": pa.uint8(),
    "large": pa.uint64(),
    "text": pa.large_string(),
    "day": pa.date32(),
    "at": pa.timestamp("ms", "Europe/Zurich"),
    "naive": pa.timestamp("us"),
    "money": pa.decimal128(9, 2),
    "list": pa.list_(pa.int32()),
    "struct": pa.struct({"a": pa.int16(), "b": pa.string()}),
    "raw": pa.binary(),
    "flag": pa.bool_(),
    "real": pa.float32(),
    "map": pa.map_(pa.string(), pa.int64()),
    "span": pa.duration("ms"),
}


def load(spark: SparkSession, state: str, **options: Any) -> DataFrame:
    return spark.read.format("ddflow").options(**options).load(state)


@pytest.fixture(scope="module")
def reading(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(spark_bridge.DdflowSource)
    return spark


def test_every_type_comes_back(reading: SparkSession, state: str) -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", KINDS, dd.Upsert("id")))
    values = {
        "id": [1, 2],
        "small": [200, None],
        "large": [2**64 - 1, 0],
        "text": ["x", None],
        "day": [date(2024, 2, 29), None],
        "at": [1_700_000_000_123, None],
        "naive": [5, None],
        "money": ["1.25", None],
        "list": [[1, None], None],
        "struct": [{"a": 1, "b": None}, None],
        "raw": [b"\0", None],
        "flag": [True, None],
        "real": [float("nan"), None],
        "map": [[("k", 1)], None],
        "span": [1500, None],
    }
    columns = {
        name: pa.array(given, pa.string()).cast(KINDS[name]) if name == "money" else pa.array(given, KINDS[name])
        for name, given in values.items()
    }
    hands = hands_of(state, 2, flow)
    hands.epoch({"a": pa.table(columns)})
    hands.close()
    assert counted(load(reading, state).drop("_time").toArrow()) == plainly(dd.read(state, "out"))


@long_on_spark
def test_batches_on_spark(reading: SparkSession, state: str) -> None:
    hands = hands_of(state, 3, retain=5)
    for epoch in (1, 2):
        hands.epoch({"orders": orders_of(80, seed=epoch)})
    frame = load(reading, state, output="by_city")
    assert frame.columns == ["city", "count", "_time", "_diff"] and frame.rdd.getNumPartitions() == 3
    assert counted(frame.drop("_time").toArrow()) == plainly(dd.read(state, "by_city"))
    assert counted(load(reading, state, output="diff", asOf=1).drop("_time").toArrow()) == plainly(
        dd.read(state, "diff", 1)
    )
    with pytest.raises(PySparkException, match="it has the outputs"):
        load(reading, state)
    row = load(reading, state, output="orders").first()
    assert row is not None
    with setting(reading, "spark.sql.python.filterPushdown.enabled", "true"):
        found = load(reading, state, output="orders", pushdown="true").where(f"id = {row.id} and amount is not null")
        found = found.union(load(reading, state, output="orders", pushdown="true").where(f"id = {row.id}"))
        assert found.rdd.getNumPartitions() == 2
        assert found.where(f"id <=> {row.id}").count() == 1 + (row.amount is not None)
    hands.close()


@mid_on_spark
def test_a_plan_with_functions_is_given(reading: SparkSession, state: str) -> None:
    flow = dd.Flow()
    rows = flow.upserts("a", {"id": pa.int64()}, dd.Upsert("id"))
    flow.output("odd", rows.filter(lambda batch: pc.equal(pc.bit_wise_and(batch.column("id"), 1), 1)))
    with flow.open(state) as engine:
        engine.step({"a": pa.table({"id": [1, 2, 3]})}, 1)
    with pytest.raises(PySparkException, match=r"DdflowSource[.]of"):
        load(reading, state)
    try:
        reading.dataSource.register(spark_bridge.DdflowSource.of(flow))
        assert sorted(row.id for row in load(reading, state).collect()) == [1, 3]
    finally:
        reading.dataSource.register(spark_bridge.DdflowSource)


@long_on_spark
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.soak)])
def test_a_query_follows_a_writer_and_restarts(
    reading: SparkSession, state: str, tmp_path: Path, most: int | None
) -> None:
    limit = {} if most is None else {"maxEpochsPerTrigger": most}
    hands, seeds = hands_of(state, 3, grace=0), itertools.count()

    def follow(trigger: dict[str, Any]) -> Any:
        frame = reading.readStream.format("ddflow").options(output="by_city", **limit).load(state)
        return (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start(str(tmp_path / "sink"))
        )

    for epochs in (2, 3):
        for _ in range(epochs):
            hands.epoch({"orders": orders_of(60, seed=next(seeds))})
        query = follow({"availableNow": True})
        assert query.awaitTermination(60)
        held = (
            reading.read.parquet(str(tmp_path / "sink"))
            .groupBy("city", "count")
            .sum("_diff")
            .where("`sum(_diff)` <> 0")
        )
        assert counted(held.toArrow()) == plainly(dd.read(state, "by_city"))
    query = follow({"processingTime": "0 seconds"})
    try:
        for _ in range(2):
            hands.epoch({"orders": orders_of(60, seed=next(seeds))})
            query.processAllAvailable()
    finally:
        query.stop()
    held = reading.read.parquet(str(tmp_path / "sink")).groupBy("city", "count").sum("_diff").where("`sum(_diff)` <> 0")
    assert counted(held.toArrow()) == plainly(dd.read(state, "by_city"))
    hands.close()
