"""Reading a version of a state as a batch: one task a partition where that is exact, else one for all.

Invariant: every task reads the version that the driver looked at when it planned, and the rows of all tasks are what
`ddflow.read` gives of it. A version may be swept away before its tasks run, which is an error that says so; and of
filters only those are taken over from Spark whose answer is the same there and in Arrow, so neither floats, which have
a NaN, nor what is null-safe; the others Spark applies itself.

>>> fits(EqualTo(("id",), 7), pa.schema({"id": pa.int64()})), fits(EqualTo(("x",), 1.5), pa.schema({"x": pa.float64()}))
(True, False)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from ddflow.partitions.driver_epochs import partitions_with, read_updates, shared
from ddflow.partitions.epoch_start import Version
from ddflow.plan.plan import Plan
from ddflow.storage.manifest import Manifest
from spark_bridge.tasks import travelling
from spark_bridge.types import carrier

_COMPARE: Final[dict[type[Filter], Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_EXACT: Final = (pat.is_integer, pat.is_boolean, pat.is_string, pat.is_date32)
"""Of the types that travel, those whose values compare alike in Spark and in Arrow."""


class Read(NamedTuple):
    """A read: a version of a state, its plan if it has functions, the output's name, columns and times.

    The columns are the requested ones, in the flow's types.
    """

    version: Version
    flow: Plan | None
    name: str
    columns: pa.Schema
    as_of: int | None
    after: int | None


@dataclass(frozen=True)
class Split(InputPartition):
    """``share``: a stage and a partition, or None for all of the state."""

    share: tuple[int, int] | None


class BatchReader(DataSourceReader):
    """See `DdflowSource.reader`.  Travels to the tasks, which read."""

    def __init__(self, read: Read, plan: Plan, manifest: Manifest) -> None:
        self.asked, self.filters = read, list[Any]()
        self.parts = parts_of(plan, read.name, manifest)

    def partitions(self) -> Sequence[InputPartition]:
        """One or more."""
        return self.parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition's rows, in the types that travel. O(bytes of it). Raises the errors of `read_updates`."""
        assert isinstance(partition, Split), partition
        version, flow, name, columns, as_of, after = self.asked
        yield from sent(read_updates(version, flow, name, partition.share, as_of, after), columns, name, self.filters)


class Searcher(BatchReader):
    """A reader that applies Spark's filters to rows, and to partitions if they determine the key."""

    def __init__(self, read: Read, plan: Plan, manifest: Manifest) -> None:
        super().__init__(read, plan, manifest)
        self._plan: tuple[Plan, Manifest] | None = (plan, manifest)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what is exact; give back the rest, for Spark.  O(filters)."""
        rest = []
        for each in filters:
            if fits(each, self.asked.columns):
                self.filters.append(each)
            else:
                rest.append(each)
        if self._plan is not None and len(self.parts) > 1:
            plan, manifest = self._plan
            by = shared(plan, self.asked.name)
            assert by is not None, "it has several parts"
            numbers = partitions_with(by.by or (), self._values(), manifest)
            if numbers is not None:
                self.parts = [Split((by.stage, number)) for number in numbers]
        return rest

    def _values(self) -> dict[str, list[Any]]:
        """Return the values that filters allow, by column."""
        out: dict[str, list[Any]] = {}
        for each in self.filters:
            given = [each.value] if isinstance(each, EqualTo) else list(each.value) if isinstance(each, In) else None
            if given is not None and each.attribute[0] not in out:
                kind = self.asked.columns.field(each.attribute[0]).type
                try:
                    out[each.attribute[0]] = [pa.scalar(value, carrier(kind)).cast(kind) for value in given]
                except pa.ArrowInvalid:
                    continue  # no value of the column's own type: no row has it, and Spark's own finds none
        return out


def parts_of(plan: Plan, name: str, manifest: Manifest) -> list[Split]:
    """Split an output or an input into partitions for tasks. O(nodes + partitions)."""
    if manifest.partitions == 1 or not manifest.inventories or (found := shared(plan, name)) is None:
        return [Split(None)]
    return [Split((found.stage, number)) for number in range(manifest.partitions)]


def sent(table: pa.Table, columns: pa.Schema, name: str, filters: Iterable[Any] = ()) -> Iterator[pa.RecordBatch]:
    """Convert updates for Spark: some columns, the rows that pass the filters, in the types that travel. O(rows)."""
    for out in travelling(table.select(columns.names), name):
        for each in filters:
            out = out.filter(_passes(each, out))
        if out.num_rows:
            yield out


def fits(given: Filter, columns: pa.Schema) -> bool:
    """Whether Arrow gives the answer that Spark would.  Pure."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in columns.names:
        return False
    if isinstance(given, IsNull | IsNotNull):
        return True
    kind = carrier(columns.field(path[0]).type)
    values = given.value if isinstance(given, In) else [getattr(given, "value", None)]
    if kind is None or type(given) not in (*_COMPARE, In) or not any(test(kind) for test in _EXACT) or None in values:
        return False
    try:
        for value in values:
            pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def _passes(given: Any, rows: pa.RecordBatch) -> pa.Array:
    column = rows.column(given.attribute[0])
    if isinstance(given, IsNull):
        return column.is_null()
    if isinstance(given, IsNotNull):
        return column.is_valid()
    if isinstance(given, In):
        return pc.is_in(column, pa.array(list(given.value), column.type))
    return _COMPARE[type(given)](column, pa.scalar(given.value, column.type))
