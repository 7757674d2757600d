"""Read a state as a Spark data source.

The source reads one of three things: the contents of an output, now or at an earlier time; its changes; or its updates.

Unknown options are refused, and errors of the state, plan or schema are raised before a task runs. A batch and a
stream have the same columns as updates. A batch has one task for each partition if partitions can be read separately,
and otherwise a single task. All tasks read the version with which the driver made its plan. Limits: a version may be
deleted before its tasks run, which raises `SnapshotExpired`.

>>> DdflowSource({"path": "nowhere", "outptu": "by_city"}).schema()
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: read a state with the option 'outptu': there is no such option; did you mean 'output'? ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
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
from pyspark.sql.types import StructType

from ddflow.columns.names import did_you_mean
from ddflow.engine.read.history import check_readable_time, make_side_output_error
from ddflow.engine.snapshot import find_version
from ddflow.errors import ErrorText, NotReadable, Option, SchemaMismatch, SpecError, TimeWentBack
from ddflow.partitions.driver_epochs import find_partitioning, find_partitions_of_values, read_updates
from ddflow.partitions.epoch_start import StateVersion
from ddflow.plan.compatibility import resolve_plan
from ddflow.plan.plan import Plan
from ddflow.storage.manifest import Manifest
from ddflow.storage.opening import open_existing_store
from ddflow.storage.protocol import Store
from ddflow.time import format_time, parse_time
from spark_bridge.sources.base import check_limit_supported, check_options, list_readable_partitions
from spark_bridge.sources.change_stream import ChangeStream
from spark_bridge.tasks import to_spark_batches
from spark_bridge.types import find_transfer_type, spark_schema

BATCH: Final = ("asOf", "epoch", "changesFrom", "changesTo", "pushdown")
STREAM: Final = ("startingEpoch", "maxEpochsPerTrigger")
_HISTORY: Final = ErrorText(
    "a state that Spark created keeps only the last time; its changes are in outputs= and ",
    "in a sink of mode 'changelog'; a state that flow.open created with ",
    Option("retain"),
    " keeps more times",
)
OPTIONS: Final = ("path", "output", "trust", *BATCH, *STREAM)
ASKED: Final = "read a state"


_COMPARE: Final[dict[type[Filter], Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_EXACT: Final = (pat.is_integer, pat.is_boolean, pat.is_string, pat.is_date32)
"""The transfer types whose values have the same order in Spark as in Arrow."""


class DdflowSource(DataSource):
    """The Spark data source ``ddflow``, which reads and follows states. See docs/spark.md for the options.

    Attributes
    ----------
    flow : Plan or None
        The plan, if the state's own plan has functions: see `of`.

    Examples
    --------
    Register it, then load a state::

        spark.dataSource.register(DdflowSource)
        spark.read.format("ddflow").load(state)
        spark.readStream.format("ddflow").load(state)
    """

    flow: Plan | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name, ``"ddflow"``."""
        return "ddflow"

    @classmethod
    def of(cls, flow: Plan) -> type[DdflowSource]:
        """Return a data source for states whose plan has Python functions. States do not store these functions.

        Register this class instead of `DdflowSource`.

        Parameters
        ----------
        flow : Plan
            The plan.

        Returns
        -------
        type of DdflowSource
            A class with the same format name.
        """
        given = flow.frozen()

        class FlowSource(cls):  # type: ignore[misc, valid-type]
            flow = given

        return FlowSource

    def schema(self) -> StructType:
        """Return the columns of the output's updates.

        Returns
        -------
        pyspark.sql.types.StructType
            The row's columns, then ``_time`` and ``_diff``.

        Raises
        ------
        SpecError
            For options, names and types that do not exist.
        StateRefused, CorruptState, PlanChanged
            The errors of `ddflow.read`.

        Notes
        -----
        O(nodes of the plan) time.
        """
        with self._open_state() as (_, _, plan, name):
            own = plan.updates_schema(name)
            assert own is not None, "the name was looked up"
            return spark_schema(own, f"output {name!r}")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, for the newest version or the version of an epoch.

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
            The requested columns.

        Returns
        -------
        DataSourceReader
            The reader of that version.

        Raises
        ------
        NotReadable, SnapshotExpired
            For a time that cannot be read; for an epoch that is not kept.
        DdflowError
            The errors of `schema`.

        Notes
        -----
        O(nodes of the plan) time.
        """
        check_options(self.options, OPTIONS, STREAM, ASKED, "read a batch", ", or use readStream")
        given = {name for name in ("asOf", "changesFrom", "changesTo") if name in self.options}
        if "asOf" in given and len(given) > 1:
            raise SpecError(
                "read with asOf and changesFrom or changesTo",
                "asOf reads contents, but changesFrom and changesTo read changes",
                "use one kind of option",
            )
        if given == {"changesTo"}:
            raise SpecError(
                f"read with changesTo={self.options['changesTo']}",
                "changesFrom is missing",
                "add changesFrom, or use asOf instead",
            )
        with self._open_state(self._parse_number("epoch")) as (store, manifest, plan, name):
            kind = plan.time_type
            as_of, after, to = (self._parse_time(option, kind) for option in ("asOf", "changesFrom", "changesTo"))
            if name not in plan.outputs and name not in plan.inputs:
                raise make_side_output_error(f"read {name!r} of {store.where}", name, plan.side_outputs()[name][0])
            as_of = to if after is not None else as_of
            for time in (time for time in (after, as_of) if time is not None):
                asked = f"read {name!r} of {store.where} at {format_time(time, kind)}"
                check_readable_time(asked, time, manifest.since, manifest.frontier, _HISTORY, kind)
            if after is not None and after > (last := max(manifest.last, manifest.since) if as_of is None else as_of):
                found = f"the changes end at {format_time(last, kind)}"
                raise TimeWentBack(f"changes from {format_time(after, kind)}", found, "use an earlier time")
            version = StateVersion.of_manifest(store, manifest, self._parse_trust())
            columns = self._select_columns(plan.updates_schema(name), schema, name)
            reader = FilteredReader if self._parse_flag("pushdown") else BatchReader
            return reader(ReadRequest(version, self.flow, name, columns, as_of, after), plan, manifest)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, which follows a state's epochs.

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
            The requested columns.

        Returns
        -------
        DataSourceStreamReader
            The reader from the epoch in the options.

        Raises
        ------
        MissingExtra
            For a limit of epochs before PySpark 4.2.
        DdflowError
            The errors of `reader`.

        Notes
        -----
        O(nodes of the plan) time.
        """
        check_options(self.options, OPTIONS, BATCH, ASKED, "read a stream", ", or use read")
        most = self._parse_number("maxEpochsPerTrigger")
        if most is not None and most < 1:
            raise SpecError(f"maxEpochsPerTrigger={most}", "a batch would have no epochs", "use 1 or more")
        begin = self.options.get("startingEpoch", "earliest").strip().lower()
        if begin not in ("earliest", "latest"):
            begin = str(self._parse_number("startingEpoch"))
        with self._open_state() as (store, _, plan, name):
            if name in plan.inputs and name not in plan.outputs:
                raise NotReadable(
                    f"follow {name!r} of {store.where}",
                    "it is an input, and a state does not keep the updates of an input",
                    "declare an output of it, or read it as a batch",
                )
            if begin == "earliest" and name not in plan.outputs:
                begin = "kept"  # a state keeps no rows of a side output
            columns = self._select_columns(plan.updates_schema(name), schema, name)
            check_limit_supported(most, "follow a state with maxEpochsPerTrigger")
            return ChangeStream(store.where, self._parse_trust(), self.flow, name, columns, begin, most)

    @contextmanager
    def _open_state(self, epoch: int | None = None) -> Iterator[tuple[Store, Manifest, Plan, str]]:
        """Open the state. Yield the store, a version's manifest, the plan, and the name of the requested output.

        Raises the errors of `schema`.
        """
        check_options(self.options, OPTIONS, (), ASKED, ASKED)
        if not self.options.get("path"):
            raise SpecError(
                "read a state", "the path is missing", "pass the state's folder, or s3://bucket/prefix, to load()"
            )
        with open_existing_store(self.options["path"], trust=self._parse_trust()) as store:
            manifest = find_version(store, epoch)
            try:
                plan = resolve_plan(manifest.plan, self.flow, store.where)
            except SpecError as error:  # it has functions, which states do not store
                raise SpecError(error.asked, error.found, "register spark_bridge.DdflowSource.of(flow)") from None
            yield store, manifest, plan, self._find_output(plan, store.where)

    def _parse_trust(self) -> str:
        trust: str = self.options.get("trust", "owner")
        if trust not in ("owner", "group"):
            raise SpecError(
                ErrorText("the option ", Option("trust", trust)), "there is no such value", "use 'owner' or 'group'"
            )
        return trust

    def _find_output(self, plan: Plan, where: str) -> str:
        """Return the requested output, input or side output."""
        sides, inputs = [*plan.side_outputs()], [*plan.inputs]
        name: str | None = self.options.get("output")
        if name is None:
            if len(plan.outputs) == 1:
                return next(iter(plan.outputs))
            raise SpecError(
                f"read {where}",
                f"it has the outputs {[*plan.outputs]}, the side outputs {sides} and the inputs {inputs}",
                'choose one: .option("output", ...)',
            )
        if name not in [*plan.outputs, *sides, *inputs]:
            raise NotReadable(
                f"read {name!r} of {where}",
                f"there is no such output or input; the state has the outputs "
                f"{[*plan.outputs]}, the side outputs {sides} and the inputs {inputs}",
                did_you_mean(name, [*plan.outputs, *sides, *inputs], "names"),
            )
        return name

    def _select_columns(self, own: pa.Schema | None, asked: StructType, name: str) -> pa.Schema:
        """Select the requested columns, with the types of the flow."""
        assert own is not None, "the name was looked up"
        there = {field.name: field.dataType for field in spark_schema(own, f"output {name!r}")}
        for field in asked:
            if there.get(field.name) != field.dataType:
                kind = there.get(field.name)
                raise SchemaMismatch(
                    f"column {field.name!r} of {name!r} as {field.dataType.simpleString()}",
                    "there is no such column" if kind is None else f"it is {kind.simpleString()}",
                    "omit schema(), or use the names and types of the output",
                    column=field.name,
                )
        return pa.schema([own.field(field.name) for field in asked])

    def _parse_number(self, name: str) -> int | None:
        text = self.options.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            extra = ", 'earliest' or 'latest'" if name == "startingEpoch" else ""
            raise SpecError(
                f"the option {name}={text!r}", "that is not a whole number", f"use a whole number{extra}"
            ) from None

    def _parse_time(self, name: str, kind: pa.DataType) -> int | None:
        """Parse the time in an option. ``kind``: the type of times."""
        text = self.options.get(name)
        return None if text is None else parse_time(f"the option {name}={text!r}", text, kind)

    def _parse_flag(self, name: str) -> bool:
        text = self.options.get(name, "false").strip().lower()
        if text not in ("true", "false"):
            raise SpecError(f"the option {name}={text!r}", "that is neither true nor false", "use 'true' or 'false'")
        return bool(text == "true")


class ReadRequest(NamedTuple):
    """A read request.

    ``version``: the version of the state. ``flow``: the plan, if it has functions, else None. ``name``: the name of the
    output. ``columns``: the requested columns, in the flow's types. ``as_of``: the time of the contents, or the last
    time of changes. ``after``: the time after which changes begin; None for contents.
    """

    version: StateVersion
    flow: Plan | None
    name: str
    columns: pa.Schema
    as_of: int | None
    after: int | None


@dataclass(frozen=True)
class PartitionSplit(InputPartition):
    """A split of the state. ``share`` is a stage and a partition, or None for all rows."""

    share: tuple[int, int] | None


class BatchReader(DataSourceReader):
    """The reader that `DdflowSource.reader` returns. Each task reads with a copy of the reader."""

    def __init__(self, read: ReadRequest, plan: Plan, manifest: Manifest) -> None:
        self.asked, self.filters = read, list[Any]()
        self.parts = [PartitionSplit(share) for share in list_readable_partitions(plan, read.name, manifest)]

    def partitions(self) -> Sequence[InputPartition]:
        """Return at least one split."""
        return self.parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split, in Spark's types. O(bytes of the split). Raises the errors of `read_updates`."""
        assert isinstance(partition, PartitionSplit), partition
        version, flow, name, columns, as_of, after = self.asked
        table = read_updates(version, flow, name, partition.share, as_of, after)
        for out in to_spark_batches(table.select(columns.names), name):
            for each in self.filters:
                out = out.filter(_apply_filter(each, out))
            if out.num_rows:
                yield out


class FilteredReader(BatchReader):
    """A reader that applies Spark's filters to rows, and reads only the partitions of the keys that filters allow."""

    def __init__(self, read: ReadRequest, plan: Plan, manifest: Manifest) -> None:
        super().__init__(read, plan, manifest)
        self._plan: tuple[Plan, Manifest] | None = (plan, manifest)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that Arrow evaluates exactly as Spark does, and return all other filters to Spark.

        O(filters).
        """
        rest = []
        for each in filters:
            if is_filter_exact(each, self.asked.columns):
                self.filters.append(each)
            else:
                rest.append(each)
        if self._plan is not None and len(self.parts) > 1:
            plan, manifest = self._plan
            by = find_partitioning(plan, self.asked.name)
            assert by is not None, "it has several parts"
            numbers = find_partitions_of_values(by.by or (), self._list_filter_values(), manifest)
            if numbers is not None:
                self.parts = [PartitionSplit((by.stage, number)) for number in numbers]
        return rest

    def _list_filter_values(self) -> dict[str, list[Any]]:
        """For each column, return the values that the filters allow."""
        out: dict[str, list[Any]] = {}
        for each in self.filters:
            given = [each.value] if isinstance(each, EqualTo) else list(each.value) if isinstance(each, In) else None
            if given is not None and each.attribute[0] not in out:
                kind = self.asked.columns.field(each.attribute[0]).type
                try:
                    out[each.attribute[0]] = [pa.scalar(value, find_transfer_type(kind)).cast(kind) for value in given]
                except pa.ArrowInvalid:
                    continue  # no row has this value, since it does not fit the column; Spark's filter finds none
        return out


def is_filter_exact(given: Filter, columns: pa.Schema) -> bool:
    """Return True if Arrow evaluates a filter exactly as Spark does. Pure.

    Filters on floats are not exact, because of NaN. Null-safe filters are not exact either.

    >>> columns = pa.schema({"id": pa.int64(), "x": pa.float64()})
    >>> is_filter_exact(EqualTo(("id",), 7), columns), is_filter_exact(EqualTo(("x",), 1.5), columns)
    (True, False)
    """
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in columns.names:
        return False
    if isinstance(given, IsNull | IsNotNull):
        return True
    kind = find_transfer_type(columns.field(path[0]).type)
    values = given.value if isinstance(given, In) else [getattr(given, "value", None)]
    if kind is None or type(given) not in (*_COMPARE, In) or not any(test(kind) for test in _EXACT) or None in values:
        return False
    try:
        for value in values:
            pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def _apply_filter(given: Any, rows: pa.RecordBatch) -> pa.Array:
    column = rows.column(given.attribute[0])
    if isinstance(given, IsNull):
        return column.is_null()
    if isinstance(given, IsNotNull):
        return column.is_valid()
    if isinstance(given, In):
        return pc.is_in(column, pa.array(list(given.value), column.type))
    return _COMPARE[type(given)](column, pa.scalar(given.value, column.type))
