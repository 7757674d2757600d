"""Define the records that a manifest keeps of epochs, sources and sinks.

The receipt of an epoch lists the calls of the epoch, their results, and the new files of the outputs. ddflow recognizes
a repeated epoch by the batch number in its receipt. So all batch numbers must come from a single query that feeds the
state.

Guarantees: an output names no file twice.
Limits: a receipt says neither what the named files contain nor which program passed the rows.

>>> blob = Blob("00ff00ff00ff00ff-1.arrow", 4, bytes(16))
>>> call = EpochCall("step", 7, "0" * 32, 8, {"applied": 3}, {"rows": Output((blob,), 3)}, {"step": 1200})
>>> from ddflow.storage.fields import Decoder, decode_record, encode_record
>>> decode_record(Decoder(Epoch), encode_record(Epoch(1, (call,), batch=0)), "m") == Epoch(1, (call,), 0)
True
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from ddflow.errors import CommandFix, CorruptState, ErrorText
from ddflow.storage.fields import Hex, HexOrNone, Instant, Moment, Natural, Path, StrictRecord
from ddflow.storage.protocol import Blob

Kind = Literal["step", "push", "advance_to", "replace", "restate"]
REMEDY: Final = ErrorText(
    "go back with ", CommandFix("rollback"), ", restore it from a backup, or replay the log into a new state"
)
QUERY: Final = 200
"""The maximum number of characters in a query's name."""
Name = Annotated[str, Meta(min_length=1, max_length=QUERY)]


class Output(StrictRecord, frozen=True):
    """The files, in order, with the updates that one call added to one output.

    ``rows``: the total number of their rows.
    """

    blobs: Annotated[tuple[Blob, ...], Meta(min_length=1)]
    rows: Natural


class EpochCall(StrictRecord, frozen=True):
    """One call of an epoch, and its result.

    ``time``: the time of the step, or the frontier that the call asked for; 0 for a push. ``digest``: the digest of the
    input rows, as 32 hex digits. ``frontier``: the frontier after the call. ``counts``: the number of events by
    verdict, and of ``absent`` keys. ``outputs``: the gains of the outputs by name, without empty gains. ``figures``:
    measurements by name. ``origin``: the files that the rows were read from, if any.
    """

    kind: Kind
    time: Instant
    digest: Hex
    frontier: Instant
    counts: dict[str, Natural]
    outputs: dict[str, Output]
    figures: dict[str, Natural]
    origin: Path = ""


class Epoch(StrictRecord, frozen=True):
    """The receipt of a committed epoch, call by call.

    ``batch``: the number of the epoch's batch in the query that feeds the state, if any. ``digest``, ``written``: the
    digest and the date (unix milliseconds) of the manifest that committed the epoch. In the manifest of the epoch
    itself, ``digest`` is "" and ``written`` is None.
    """

    epoch: Natural
    calls: tuple[EpochCall, ...]
    batch: Natural | None
    digest: HexOrNone = ""
    written: Moment | None = None

    def list_files(self) -> Iterator[Blob]:
        """Yield the files of all outputs of all calls, in order."""
        for call in self.calls:
            for output in call.outputs.values():
                yield from output.blobs

    def count_output_bytes(self, output: str) -> int:
        """Count the bytes of the new files of one output. O(calls)."""
        return sum(blob.length for call in self.calls if output in call.outputs for blob in call.outputs[output].blobs)


class PastColumns(StrictRecord, frozen=True):
    """The columns of a plan's inputs and of its outputs' tables, up to the epoch after which the plan was changed.

    ``inputs`` and ``outputs`` map names to serialized Arrow schemas in base64.
    """

    epoch: Natural
    inputs: dict[str, str]
    outputs: dict[str, str]


class Feed(StrictRecord, frozen=True):
    """The streaming query whose batches feed a state.

    ``query``: the id of the query, "" if it is unknown. ``batch``: the number of its last batch, counted from 0.
    ``inputs``: the inputs that the query has rows for, sorted; empty if they are unknown.
    """

    query: Annotated[str, Meta(max_length=QUERY)]
    batch: Natural
    inputs: tuple[str, ...] = ()


class AttachedSource(StrictRecord, frozen=True):
    """A source that feeds a state, and how far it was read.

    ``kind``, ``target``: the type of the source, and its address without credentials. ``position``: how far the source
    was read, as JSON that only the source understands. ``left_out``: by input, the columns that appeared with its first
    rows and are not read. ``reached``: the time, in unix milliseconds, before which all written rows were read; None if
    it is unknown.
    """

    kind: Name
    target: Path
    position: Any
    left_out: dict[str, tuple[str, ...]]
    reached: Moment | None = None


class AttachedSink(StrictRecord, frozen=True):
    """A sink that receives the epochs of a state, and how far it was written.

    ``kind``, ``target``: as in `AttachedSource`. ``mode``: how the sink writes rows. ``epoch``: the last epoch that
    needs no more writes. ``written``: the last epoch with rows for the sink, as the target reports it. ``digest``: the
    digest of that epoch's manifest, as the target reports it. ``columns``: the columns of the sink's table.
    ``syncing``: whether a sync adds columns to the table and has not filled them yet.
    """

    kind: Name
    target: Path
    mode: Name
    epoch: Natural
    written: Natural
    digest: HexOrNone
    columns: tuple[str, ...] = ()
    syncing: bool = False


def refuse_duplicate_files(calls: Iterable[Mapping[str, Output]]) -> None:
    """Raise `ValueError` if an output names a file twice. ``calls``: the outputs of each call. O(files)."""
    for outputs in calls:
        for output in outputs.values():
            if len(output.blobs) > 1 and len({blob.name for blob in output.blobs}) < len(output.blobs):
                raise ValueError(f"two of the {len(output.blobs)} files of an output are the same")


def damage_error(what: str, found: str) -> CorruptState:
    """Build the error for data that ddflow did not write."""
    return CorruptState(what, found, REMEDY)
