"""Run one step of one partition of one stage, which is the work of one task.

`StagePartition` opens the partition's inventory, applies the rows of an epoch, writes files and returns a receipt.
`BackfillComputation` fills the new parts of a plan from the rows of the state. `compute_stage` runs a stage without a
state.

Guarantees: a step returns the same updates as the local engine for the same rows. The name of each file contains an id
of the attempt. So a retried or speculative task never overwrites a file of another attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret, compute_value_hashes
from ddflow.connectors.formats.base import BAD
from ddflow.connectors.parquet.sink import OutputFolder, open_output_folder
from ddflow.dataflow.admission import InputValidator
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import ComputedStep, Graph, ReleasedEvents
from ddflow.dataflow.result import Step
from ddflow.dataflow.side_outputs import SideOutputs, build_bad_message_table, has_bad_messages
from ddflow.dataflow.spill import spill_to_fit_budget
from ddflow.engine import checkpoint as recovery
from ddflow.engine.checkpoint import Inventory, StoredInventory
from ddflow.engine.outputs import write_output
from ddflow.operators.updates import Updates, compute_with_net_retry, ints, narrow_ints
from ddflow.partitions.epoch_start import Backfill, EpochStart, compute_usable_memory
from ddflow.partitions.messages import MessageSummary, match_message_table
from ddflow.partitions.receipt import Receipt
from ddflow.partitions.stages import StageComputation, StageGraph, Stages, build_sum_updates
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.text.codec import compute_node_ids
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.fields import encode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import InventorySectionWriter, InventoryText
from ddflow.storage.manifest import Output
from ddflow.storage.protocol import Blob
from ddflow.time import CLOSED, NEVER


class StagePartitionResult(NamedTuple):
    """The result of a step: its receipt, and the rows for later stages.

    ``sums``: the rows by number of the exchange, with the columns ``_time`` and ``_diff``.
    """

    receipt: Receipt
    sums: dict[int, pa.Table]


class StagePartition:
    """One partition of one stage, which is open and can run steps.

    ``stage``, ``number``: the stage and the partition. ``at``: the name of the loaded inventory, "" for none.

    >>> import os, tempfile, ddflow as dd
    >>> from ddflow.partitions.commit import DriverOptions, EpochDriver
    >>> from ddflow.partitions.stages import cut_stages
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     coordinator = EpochDriver.open(flow, os.path.join(place, "state"), DriverOptions(partitions=1))
    ...     start = coordinator.begin()
    ...     part = StagePartition(cut_stages(flow), start, stage=0, number=0)
    ...     rows = pa.table({"id": [1, 2]}).to_reader()
    ...     done = part.step(start, {"people": rows}, {}, {"people": 2}, {"people": "00" * 16})
    ...     committed = coordinator.finish(start, [done.receipt])
    ...     part.close()
    ...     coordinator.close()
    >>> done.receipt.counts, done.receipt.outputs["people"].rows, committed.epoch
    ({'applied': 2}, 2, 1)
    """

    def __init__(self, cut: Stages, start: EpochStart, stage: int, number: int) -> None:
        """Open this partition's inventory, which ``start`` names, and verify every file. O(bytes of the partition).

        Raises `StateRefused` if this host cannot see the state, `CorruptState`, and the errors of stores.
        """
        began = perf_counter_ns()
        self.cut, self.stage, self.number = cut, stage, number
        store = start.version.open("open a partition of", readonly=False)
        with undo_on_failure(store.close):
            graph = StageGraph(cut, stage, Secret(*start.secret))
            budget = MemoryBudget(None if start.memory is None else compute_usable_memory(start.memory), None, store)
            self.dataflow = Dataflow(cut.flow, graph, budget, retain=start.retain, step=StageComputation)
            self.levelled, self.store, self.batch_store = (
                graph,
                store,
                BatchStore(store, compresses=start.memory is None),
            )
            self.dataflow.budget.home = self.batch_store if self.dataflow.budget.can_spill else None
            for arranged in graph.arrangements.values():
                arranged.slots.lasting = True
            self.sections = InventorySectionWriter(store)
            self.at, self.names, self.sink = "", dict[str, Blob](), cast(OutputFolder | None, None)
            self.lent = dict.fromkeys(graph.lent, "")
            """The name of the inventory that was loaded last, for each earlier stage whose state this stage reads."""
            if start.inventories:
                self._load_inventory(start)
        self.opened = (perf_counter_ns() - began) // 1000

    def catch_up(self, start: EpochStart) -> None:
        """Load the newest inventory. The partition must be open with an inventory that ``start.past`` lists.

        O(new bytes). Raises the errors of opening. After an error, the caller must close the partition.
        """
        began = perf_counter_ns()
        self._load_inventory(start)
        self.opened = (perf_counter_ns() - began) // 1000

    def _load_inventory(self, start: EpochStart) -> None:
        """Load the inventory of the partition, as given in an `EpochStart`."""
        blob = start.inventories[self.stage][self.number]
        stored = StoredInventory.read(self.store, blob)
        own = _select_stage_inventory(stored.of, self.cut, self.stage)
        # The inventory of a local engine and its sections cover all stages. Therefore each stage selects and encodes
        # its own part.
        text = stored.text if own == stored.of else InventoryText(encode_record(own), ())
        self.dataflow.frontier, self.dataflow.last, self.dataflow.since = start.frontier, start.last, start.since
        recovery.restore_dataflow(
            self.dataflow,
            [StoredInventory(stored.what, own, text)],
            self.batch_store,
            indexed=self.dataflow.budget.memory is None,
        )
        self.sections.load_text(text)
        self.at, self.names = blob.name, {each.name: each for each in text.files}
        self.batch_store.register_manifest_files(self.names)

    def _load_lookup_collections(self, start: EpochStart) -> None:
        """Load the collections of earlier stages that this stage looks up. O(new bytes)."""
        graph, began = self.levelled, perf_counter_ns()
        for stage, nodes in graph.lent.items():
            at = start.inventory_name(stage, self.number)
            if self.lent[stage] == at:
                continue
            if self.lent[stage] not in ("", *start.list_past_inventories(stage, self.number)):
                for node in nodes:
                    graph.opened[node].clear_state()
            self.lent[stage] = "?"  # until the inventory is loaded completely
            stored = StoredInventory.read(self.store, start.inventories[stage][self.number])
            indexed = self.dataflow.budget.memory is None
            recovery.restore_lookup_collections(self.dataflow, nodes, stored, self.batch_store, indexed=indexed)
            self.lent[stage] = at
        self.opened += (perf_counter_ns() - began) // 1000

    def close(self) -> None:
        """Close the partition. A second call has no effect."""
        with self.dataflow.guard.lock_in_any_state("close"):
            self.dataflow.close()
            self.store.close()

    def step(
        self,
        start: EpochStart,
        inputs: Mapping[str, Any],
        sums: Mapping[int, pa.Table],
        rows: Mapping[str, int],
        digests: Mapping[str, str],
        said: Mapping[str, MessageSummary] | None = None,
    ) -> StagePartitionResult:
        """Apply this partition's rows of an epoch, and write the results. O(rows and updates) expected.

        - ``inputs``: on stage 0, Arrow data by input, in the order of arrival.
        - ``sums``: the rows received from earlier stages, by number of the exchange.
        - ``rows``, ``digests``: counts and digests of the inputs' rows, for the receipt.
        - ``said``: the message summaries by input. The table of an input must not change between epochs.

        Raises the errors of an engine's step, and `BadMessage` for messages of another table. After an error, the
        caller must close the partition, and its new files are garbage.
        """
        if start.backfill is None:
            self._load_lookup_collections(start)
        began = perf_counter_ns()
        self.dataflow.frontier, self.dataflow.last, self.dataflow.since = start.frontier, start.last, start.since
        for name, upsert in self.dataflow.graph.inputs.items():
            if upsert.expiring is not None:
                upsert.expiring.horizons.greatest = start.horizons.get(name)
        for name, mark in self.dataflow.graph.horizons.marks.items():
            admission = self.dataflow.admissions[name]
            extent = mark.read_extent(start.greatest, start.horizons, not start.inventories)
            admission.least, admission.greatest = extent
        self.dataflow.update_extents()
        for name, each in (said or {}).items():
            admission = self.dataflow.admissions[name]
            if each.table is not None:
                admission.table = match_message_table(name, admission.table, each.table)
        if start.backfill is not None:
            step = self._run_backfill(start, start.backfill, sums)
        else:
            step = self._step_events(start, inputs) if self.stage == 0 else self._step_with_received_sums(start, sums)
        stepped = perf_counter_ns()
        sent = {number: table for number, table in self.levelled.sent.items() if table.num_rows}
        self.levelled.came, self.levelled.sent = {}, {}
        receipt = self._write_changes(start, step)
        receipt = replace(
            receipt, rows=dict(rows), digests=dict(digests), sent=_hash_sent_rows(sent, self.dataflow.secret)
        )
        figures = {
            "open": self.opened,
            "step": (stepped - began) // 1000,
            "write": (perf_counter_ns() - stepped) // 1000,
            "memory": self.dataflow.nbytes,
            "bytes": receipt.inventory.length + sum(each.length for each in receipt.added),
        }
        self.opened = 0
        return StagePartitionResult(replace(receipt, figures=figures), sent)

    def _step_events(self, start: EpochStart, inputs: Mapping[str, Any]) -> Step:
        """Run a step of stage 0, with the rows of inputs."""
        if not self.dataflow.flow.holds_back:
            return self.dataflow.step(self.dataflow.ingest_inputs(inputs, start.time), start.time)
        return self.dataflow.push(self.dataflow.ingest_inputs(inputs, None), start.to)

    def _step_with_received_sums(self, start: EpochStart, sums: Mapping[int, pa.Table]) -> Step:
        """Run a step of a later stage, with the summed rows from other tasks."""
        frontier, last = (start.to, start.to - 1) if self.dataflow.flow.holds_back else (start.time + 1, start.time)
        if frontier <= self.dataflow.frontier:
            return self.dataflow.apply_step({}, None, self.dataflow.frontier, self.dataflow.last)
        came = self._build_exchange_updates(sums)
        if frontier == CLOSED:
            last = max([self.dataflow.last, *(int(each.times[-1]) for each in came.values() if each.times.size)])
        self.levelled.came = {number: each for number, each in came.items() if each.diffs.size}
        return self.dataflow.apply_step({}, self.dataflow.compute_step({}, last, frontier - 1), frontier, last)

    def _build_exchange_updates(self, sums: Mapping[int, pa.Table]) -> dict[int, Updates]:
        """Build updates from the summed rows that this stage's exchanges received."""
        here = (each for each in self.cut.exchanges if each.stage == self.stage and each.number in sums)
        return {each.number: build_sum_updates(sums[each.number], each.schema) for each in here}

    def _run_backfill(self, start: EpochStart, backfill: Backfill, sums: Mapping[int, pa.Table]) -> Step:
        """Fill the new parts of the plan from the rows of the state and from the rows that other tasks sent."""
        graph, budget = self.levelled, self.dataflow.budget
        graph.came = {number: each for number, each in self._build_exchange_updates(sums).items() if each.diffs.size}
        buffer = UpdateBuffer(budget.scratch, budget.buffered, budget.home)
        made = BackfillComputation(graph, backfill, start.last, start.frontier, start.since, buffer).run()
        spill_to_fit_budget(budget, graph, self.dataflow.batchers)
        return self.dataflow.build_committed_step(made.outputs, {}, start.frontier)

    def _write_changes(self, start: EpochStart, step: Step) -> Receipt:
        """Write the changes to files, and build the receipt."""
        store, before = self.store, self.names
        outputs = self._write_outputs(start, step)
        data = encode_record(
            _select_stage_inventory(recovery.make_inventory(self.dataflow, self.batch_store), self.cut, self.stage)
        )
        blob = self.sections.write_inventory(data)
        store.fsync_blob_names()
        self.names = {each.name: each for each in InventoryText(data, self.sections.blobs).files}
        self.batch_store.register_manifest_files(self.names)
        self.at = blob.name
        greatest, horizons = ({}, {}) if self.stage else recovery.find_max_times_and_orders(self.dataflow)
        counts = {name: n for name, n in {**step.verdicts.counts, "absent": step.verdicts.absent}.items() if n}
        return Receipt(
            stage=self.stage,
            number=self.number,
            started_from=start.version.digest,
            nonce=store.nonce,
            inventory=blob,
            outputs=outputs,
            rows={},
            digests={},
            counts=counts,
            greatest=greatest,
            horizons=horizons,
            frontier=self.dataflow.frontier,
            last=self.dataflow.last,
            since=self.dataflow.since,
            added=tuple(b for name, b in self.names.items() if name not in before),
            gone=tuple(name for name in before if name not in self.names),
            sent="",
            figures={},
            said={},
        )

    def _write_outputs(self, start: EpochStart, step: Step) -> dict[str, Output]:
        """Write the new updates of this stage's outputs."""
        here = {name: step[name] for name in self.cut.outputs[self.stage] if step[name].num_rows}
        if start.folder is None:
            self.sink = None
        elif self.sink is None or self.sink.target != start.folder:  # one sink for all epochs, as it numbers its files
            self.sink = open_output_folder(start.folder, self.store, start.version.trust)
        out = {name: write_output(self.sink, self.batch_store, name, table) for name, table in here.items()}
        if self.sink is not None and out:
            self.sink.sync()
        return out


def make_idle_receipt(cut: Stages, start: EpochStart, stage: int, number: int) -> Receipt | None:
    """Build the receipt of a partition that received no rows.

    Return None if the partition must be opened to build the receipt. O(nodes). A partition of a later stage that
    receives no rows does not change. In epoch mode, this is also true for stage 0, unless keys expire. In all
    stages, a partition can change if rows wait for their time.
    """
    expires = any(input.spec.expiry is not None for input in cut.flow.inputs.values())
    timed = any(node.reads_clock for node in cut.find_stateful_nodes(stage))
    if not start.inventories or start.backfill is not None:
        return None
    if timed or (stage == 0 and (cut.flow.holds_back or expires)):
        return None
    if len({each[number].name for each in start.inventories}) < len(start.inventories):
        return None  # a local engine's inventory covers all stages, so each stage must first write its own inventory
    frontier, last = (start.to, start.to - 1) if cut.flow.holds_back else (start.time + 1, start.time)
    if frontier in (CLOSED, start.frontier):
        last = start.last
    since = start.since if last <= NEVER + start.retain else max(start.since, last - start.retain)
    return Receipt(
        stage=stage,
        number=number,
        started_from=start.version.digest,
        nonce="",
        inventory=start.inventories[stage][number],
        outputs={},
        rows={},
        digests={},
        counts={},
        greatest={},
        horizons={},
        frontier=frontier,
        last=last,
        since=since,
        added=(),
        gone=(),
        sent="",
        figures={},
        said={},
    )


def _select_stage_inventory(given: Inventory, cut: Stages, stage: int) -> Inventory:
    """Select the part of an inventory that belongs to a stage. The inventory of a local engine covers all stages."""
    ids = compute_node_ids(cut.flow)
    here = {ids[node] for node in cut.find_stateful_nodes(stage)}
    operators = {name: each for name, each in given.operators.items() if name in here}
    return Inventory(given.inputs, operators, given.totals) if stage == 0 else Inventory({}, operators, {})


def _hash_sent_rows(sums: Mapping[int, pa.Table], secret: Secret) -> str:
    """Hash the rows that a task sends, so that two attempts can be compared. The order of rows does not matter.

    O(updates).
    """
    total = 0
    for number, table in sorted(sums.items()):
        for batch in table.to_batches():
            total += int(compute_value_hashes(batch, secret).sum()) * (2 * number + 1)
    return f"{total % 2**128:032x}" if sums else ""


class BackfillComputation(StageComputation):
    """A computation that fills the new parts of a plan.

    ``backfill``: the new parts. ``last``: the last closed time, which all updates of the computation get. ``upper``:
    the frontier of the state. `run` fills the new operators of ``graph`` and changes nothing else.
    """

    def __init__(
        self, graph: StageGraph, backfill: Backfill, last: int, upper: int, since: int, buffer: UpdateBuffer
    ) -> None:
        super().__init__(graph, {}, since, buffer)
        self.backfill, self.last, self.upper = backfill, last, upper
        self.times, self.many = ints(last), True  # the rows of the state arrive in several pieces
        self.new = find_new_operators(graph, backfill)
        computed = set(_find_computed_nodes(graph, backfill))
        shown = {graph.plan.outputs[name] for name in backfill.outputs}
        read = computed.union(shown, *(node.inputs for node in computed))
        self.nodes = [node for node in self.nodes if node in read]
        known = {
            (of, tuple(by or ()), node.of_events)
            for node in computed & graph.exchange
            for of, by in zip(node.inputs, node.exchange(), strict=True)
        }
        nodes = graph.plan.nodes
        known |= {(node, tuple(node.schema.names), False) for node in shown}
        self.sending = [
            e
            for e in graph.cut.list_computed_row_exchanges(graph.stage)
            if (nodes[e.of], tuple(e.by), e.events) in known
        ]

    def run(self) -> ComputedStep:
        """Fill new operators, and return the rows of new outputs. O(rows of their inputs)."""
        self.of.sent = {}
        if self.last == NEVER:
            return self.out
        self._check_failed_rows()
        inputs, secret = {each for each in self.graph.names if self.of.stage == 0}, self.graph.secret
        for node in self.nodes:
            if node in self.new:
                self._backfill_operator(node)
            if node in inputs or (node in self.graph.keeping and self.graph.opened[node].is_read_from_state):
                self._propagate_rows(node)
            elif node in self.exchange:
                running = self.graph.running[node]
                for given in self._group_input_updates(node):
                    self._propagate_updates(
                        node, compute_with_net_retry(running.compute_initial_updates, given, secret)
                    )
            self._compute_deferred_operators()
        for name, node in self.list_outputs():
            pieces = self._list_updates(node) if node.consolidated else self.receive_updates(node, None)
            self.out.outputs[name] = self.buffer.concat_tables(self._build_output_tables(node, pieces))
        self._send_to_exchanges(self.sending)
        return self.out

    def list_outputs(self) -> Iterable[tuple[str, Collection]]:
        """Return the new outputs of this stage."""
        return [(name, node) for name, node in super().list_outputs() if name in self.backfill.outputs]

    def build_updates_at_time(self, node: Collection) -> Updates:
        """Return a single event time for an input of this stage.

        This single event stands for all events that the state has already had.
        """
        if self.of.stage:
            return super().build_updates_at_time(node)
        return Updates(pa.table({}), narrow_ints(0), ints(1), self.times)

    def _build_output_tables(self, node: Collection, pieces: Sequence[Updates]) -> Iterable[pa.Table]:
        """Yield tables with the rows of an output, in the same form as the output's updates."""
        graph, given = self.graph, [node.schema.names]
        for (each,) in self._group_equal_rows([pieces], given):
            yield graph.opened[node].to_output_table(each, graph.secret, node.schema, graph.time_type)

    def _backfill_operator(self, node: Collection) -> None:
        """Build the state of an operator from the rows of its inputs."""
        running, changes = self.graph.running[node], []
        for inputs in self._group_input_updates(node):
            change = compute_with_net_retry(
                partial(running.compute_initial_change, since=self.since), inputs, self.graph.secret
            )
            if change is not None:
                changes.append(running.store_change(change, self._spill_change_if_needed))
        running.apply(changes, self.upper, self.since)

    def _propagate_rows(self, node: Collection) -> None:
        """Pass the rows of a collection to all operators that read it."""
        names = self.graph.needed[node].names
        for piece in self.graph.opened[node].iterate_rows(None):
            self._propagate_updates(node, piece._replace(rows=piece.rows.select(names), times=self.times))


def find_new_operators(graph: Graph, backfill: Backfill) -> set[Collection]:
    """Return the new operators, which have no state in any file. O(nodes)."""
    return {node for node, name in compute_node_ids(graph.plan).items() if name in backfill.operators}


def _find_computed_nodes(graph: Graph, backfill: Backfill) -> Iterable[Collection]:
    """Return the collections to compute for the new parts of a plan: new or stateless collections.

    O(nodes).
    """
    new = find_new_operators(graph, backfill)

    def is_computed(node: Collection) -> bool:
        return bool(node.inputs) and (node in new or not graph.opened[node].is_read_from_state)

    roots = [*new, *(graph.plan.outputs[name] for name in backfill.outputs)]
    found = walk_inputs(roots, lambda node: node.inputs if is_computed(node) else ())
    return {node for node in found if is_computed(node)}


TIME: Final = 0
"""The time that `compute_stage` gives to all updates of a flow without a clock, because it runs only one step."""


class StageResult(NamedTuple):
    """The result of `compute_stage`.

    ``outputs``: the tables of the stage's outputs and side outputs, by name. ``sent``: the rows for later stages by
    number of the exchange, without empty tables.
    """

    outputs: dict[str, pa.Table]
    sent: dict[int, pa.Table]


def compute_stage(
    cut: Stages, stage: int, secret: Secret, rows: dict[str, Any], sums: Mapping[int, pa.Table], time: int = TIME
) -> StageResult:
    """Compute one stage of one partition without a state. O(rows and updates) expected.

    ``rows``: on stage 0, the rows by input, in the order of arrival. The function removes each input from the dict when
    it reads the rows, so no input is in memory twice. ``sums``: the rows received from earlier stages, by number of the
    exchange. ``time``: in epoch mode, the time of the step. Raises the errors of an engine's step.

    >>> import ddflow as dd
    >>> from ddflow.partitions.stages import cut_stages
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "name": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("names", people.project("name").count())
    >>> stages, rows = cut_stages(flow), pa.table({"id": [1, 2, 1], "name": ["mcsherry", "zappa", "zappa"]})
    >>> first = compute_stage(stages, 0, Secret(1, 2), {"people": rows}, {})
    >>> compute_stage(stages, 1, Secret(1, 2), {}, first.sent).outputs["names"].to_pylist()
    [{'name': 'zappa', 'count': 2, '_time': 0, '_diff': 1}]
    """
    flow, graph = cut.flow, StageGraph(cut, stage, secret)
    sides = SideOutputs(flow.side_outputs(), flow.time_type)
    at, released = None if flow.holds_back else time, {}
    bad = {name: table for name, table in sides.build_tables().items() if has_bad_messages(name)}
    for name in list(rows):
        admission = InputValidator(flow.inputs[name].bound)
        events, refused = admission.validate_rows(admission.decode_without_truncates(rows.pop(name)), NEVER, at)
        released[name] = ReleasedEvents.from_parts(events)
        if refused is not None and f"{name}.bad" in bad:
            bad[f"{name}.bad"] = build_bad_message_table(
                [refused.events.rows.column(BAD).drop_null()], time, flow.time_type
            )
    graph.came = {n: build_sum_updates(table, cut.exchanges[n].schema) for n, table in sums.items()}
    computation = StageComputation(graph, released, CLOSED - 1, UpdateBuffer(None, 0), sides.add)
    computation.until = CLOSED - 1 if at is None else at
    stepped = computation.run()
    sent = {number: table for number, table in graph.sent.items() if table.num_rows}
    return StageResult({**stepped.outputs, **sides.build_tables(), **bad}, sent)
