"""Sync tables with outputs: compare the table of a sink with its output, and write the difference.

The result counts three kinds of rows: deleted rows, changed rows, and added rows. A changed row keeps its key. In a
changelog, rows are only added. Guarantees: all tables are checked before any table is changed. Limits: all rows that
differ must fit in memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF, TIME, did_you_mean
from ddflow.connectors.api import TableChanges, TableSink
from ddflow.connectors.modes import consolidate_updates, mark_rows_with_keys, read_rows_with_diff
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import RetainedEpochs
from ddflow.errors import DdflowError, SinkRefused, SpecError
from ddflow.errors.base import replace_error_texts
from ddflow.metrics import Look


class Synced(NamedTuple):
    """The numbers of table rows that `Engine.sync` changed or, with ``dry``, would change."""

    deleted: int
    """The number of deleted rows."""
    changed: int
    """The number of rows whose key stayed and whose other values changed."""
    added: int
    """The number of rows that were added with a new key."""
    keys: pa.Table | None = None
    """The keys of the deleted rows, followed by the keys of the changed rows.

    The value is None if rows were only added.
    """


def count_differences(made: TableChanges, both: pa.Table, key: Sequence[str] | None, secret: Secret) -> Synced:
    """Count the rows that were deleted, changed and added by the changes in ``made``. O(rows).

    ``both``: the rows to delete from the table and the rows to insert, as updates.

    >>> updates = pa.table({"id": [2, 2, 3, 4], "n": [9, 2, 3, 4], "_time": [1] * 4, "_diff": [-1, 1, 1, -1]})
    >>> made = TableChanges(updates.select(["id"]), updates.slice(1, 2), 4)
    >>> found = count_differences(made, updates, ("id",), Secret(1, 2))
    >>> found[:3], found.keys.to_pylist()
    ((1, 1, 1), [{'id': 4}, {'id': 2}])
    """
    if made.gone is None:
        return Synced(0, 0, made.rows.num_rows)
    diffs, keys = np.array(both.column(DIFF), np.int64), both.select(list(key or ()))
    theirs, ours = (keys.filter(pa.array(sign)) for sign in (diffs < 0, diffs > 0))
    stays = mark_rows_with_keys(theirs, ours, secret) if key else np.full(theirs.num_rows, ours.num_rows > 0)
    known = mark_rows_with_keys(ours, theirs, secret) if key else np.full(ours.num_rows, theirs.num_rows > 0)
    changed, gone = int(np.count_nonzero(known)), int(-diffs[diffs < 0].sum())
    listed = pa.concat_tables([theirs.filter(pa.array(~stays)), ours.filter(pa.array(known))])
    return Synced(gone - changed, changed, ours.num_rows - changed, listed)


class TableSync(Delivery):
    """A delivery that makes a table equal to its output.

    While the table is read, ``look`` is called with the number of rows read so far.

    >>> import ddflow as dd, tempfile
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with tempfile.TemporaryDirectory() as place, flow.open(f"{place}/state") as engine:
    ...     _ = engine.step({"people": {"id": [7]}})
    ...     engine.sync({"people": dd.sinks.sqlite(f"{place}/out.db", "people")})["people"][:3]
    (0, 0, 1)
    """

    def find_difference(self) -> tuple[TableChanges, Synced]:
        """Compare the table in the target with the rows of the output.

        Return the changes that make the table equal to the output. The difference of a side output is empty, because
        its rows describe past events and stay as they are. O(rows of the table and of the output).
        """
        epochs, ours = self.epochs, self.epochs.read_rows_as_updates(self.name)
        self.look(ours.num_rows)
        if self.name not in epochs.flow.outputs:
            made = self.make_change_converter(epochs.manifest.epoch)(
                ours if self.sink.mode != "updates" else ours.drop_columns([DIFF])
            )
            return made, count_differences(made, ours.slice(0, 0), None, epochs.hash_secret)
        read = self.shape.schema.empty_table() if self.table.missing() else self.table.read()
        self.look(read.num_rows)
        # Another writer may have written null to a column that the plan proves not null.
        ours = ours.cast(pa.schema([field.with_nullable(True) for field in ours.schema]))
        theirs = read_rows_with_diff(self.sink.mode, read, ours.schema)
        names = [name for name in ours.schema.names if name not in (TIME, DIFF)]
        gone = theirs.set_column(theirs.num_columns - 1, DIFF, pa.array(-np.array(theirs.column(DIFF))))
        gone = epochs.add_time_column(gone.select([*names, DIFF])).cast(ours.schema)
        both = consolidate_updates(pa.concat_tables([gone, ours]).combine_chunks(), epochs.hash_secret)
        made = self.make_change_converter(epochs.manifest.epoch)(both)
        if made.gone is not None and self.key is not None:
            # If a key is duplicated, a delete by key also removes the correct row. So this row is inserted again.
            again = [made.net > 0] * ours.num_rows
            if self.key:
                again = mark_rows_with_keys(ours.select(list(self.key)), made.gone, epochs.hash_secret)
            made = made._replace(rows=ours.filter(pa.array(again, pa.bool_())).select(names).cast(made.rows.schema))
        return made, count_differences(made, both, self.key, epochs.hash_secret)

    def check_ownership(self, adopt: bool) -> None:
        """Check that this state is allowed to change the table. Raises `SinkRefused`, `SinkFailed`.

        ``adopt``: whether the table may belong to another state or output.
        """
        self.check_write_mode(self.find_sink_record())
        there, state = self.table.written(), self.epochs.manifest.id
        other = self.table.occupied() if there is None else (there.state, there.output) != (state, self.name)
        if other and not adopt and not self.table.missing():
            found = (
                "no record of a writer" if there is None else f"a record of {there.output!r} of the state {there.state}"
            )
            remedy = "choose another table, or take it over with --adopt, which lists the rows that it deletes"
            raise self.make_refused_error(f"it has rows, and {found}", remedy)

    def prepare_table(self, *, dry: bool) -> None:
        """Prepare the table so that a difference can be written. Raises `SinkRefused`, `SinkFailed`.

        If another writer dropped a column, the method adds the column again, unless ``dry`` is True. Before the column
        is added, the state records that a sync has begun. If the sync ends before it writes the rows, the column has no
        values. Then `resume_from_target` refuses the table.
        """
        try:
            self.table.prepare()
        except SinkRefused:
            known = self.find_sink_record()
            if dry or known is None:
                raise
            self.close()
            self.epochs.log.sinks[self.name] = replace(known, syncing=True)
            self.epochs.publish_connector_positions()
            self.shape = self.shape._replace(had=frozenset())
            self.table.prepare()
        self.before = self.table.written()

    def write_difference(self, made: TableChanges) -> None:
        """Write a difference together with the record of the last epoch. O(rows written).

        Raises `SinkAhead`, `SinkFailed`.
        """
        self.write_changes(made, self.epochs.manifest.epoch)
        self.at = self.epochs.manifest.epoch
        self.record_delivered_epoch()


def sync_targets(
    epochs: RetainedEpochs, sinks: Mapping[str, TableSink], adopt: bool, dry: bool, look: Look = lambda rows: None
) -> dict[str, Synced]:
    """Check all targets. Then write the difference of each target. Like `Engine.sync`."""
    with ExitStack() as stack:
        each = {name: stack.enter_context(closing(TableSync(epochs, name, sink, look))) for name, sink in sinks.items()}
        for delivery in each.values():
            delivery.check_ownership(adopt)
        for delivery in each.values():
            if not (dry and delivery.table.missing()):
                delivery.prepare_table(dry=dry)
        found = {name: delivery.find_difference() for name, delivery in each.items()}
        if not dry:
            _write_differences({name: (delivery, found[name][0]) for name, delivery in each.items()})
            epochs.publish_connector_positions()
    return {name: difference for name, (_, difference) in found.items()}


def _write_differences(each: Mapping[str, tuple[TableSync, TableChanges]]) -> None:
    """Write differences. If a target fails, the error lists the targets that were written before."""
    given = list[str]()
    for name, (delivery, made) in each.items():
        try:
            delivery.write_difference(made)
        except DdflowError as error:
            if given:
                replace_error_texts(error, found=error.found + f" (changed before that: {', '.join(map(repr, given))})")
            raise
        given.append(name)


def detach_connectors(epochs: RetainedEpochs, names: tuple[str, ...]) -> None:
    """Detach sinks and sources. Like `Engine.detach`."""
    kinds: dict[str, dict[str, Any]] = {"sink": epochs.log.sinks, "source": epochs.log.sources}
    known = {f"{kind}:{name}": (of, name) for kind, of in kinds.items() for name in of}
    chosen = list[tuple[dict[str, Any], str]]()
    for asked in names:
        ways = [asked] if asked in known else [way for way, (_, name) in known.items() if name == asked]
        if not ways:
            remedy = did_you_mean(asked, [name for _, name in known.values()], "names")
            raise SpecError(f"detach {asked!r}", "it is not attached", remedy)
        if len(ways) > 1:
            remedy = f"name one of them: {' or '.join(map(repr, ways))}"
            raise SpecError(f"detach {asked!r}", "a sink and a source have this name", remedy)
        chosen.append(known[ways[0]])
    for of, name in chosen:
        of.pop(name, None)
    epochs.publish_connector_positions()
