"""Define the records that a manifest keeps of epochs, sources and sinks.

The receipt of an epoch has the calls, their results, and the files that its outputs gained. A repeated epoch is
recognized by its receipt, so all batch numbers must come from the one query that feeds the state.

Guarantees: an output names no file twice.
Limits: a receipt knows neither what its files contain nor who fed the rows.

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
    "go back with ", CommandFix("rollback"), ", restore it from a copy, or replay the log into a new state"
)
QUERY: Final = 200
"""The maximum characters of a query's name."""
Name = Annotated[str, Meta(min_length=1, max_length=QUERY)]


class Output(StrictRecord, frozen=True):
    """The files, one or more and in order, of the updates that one output gained by a call.  ``rows``: their total."""

    blobs: Annotated[tuple[Blob, ...], Meta(min_length=1)]
    rows: Natural


class EpochCall(StrictRecord, frozen=True):
    """One call of an epoch, and its result.

    ``time``: of the step, or the frontier that the call asked for; 0 for a push.  ``digest``: 32 hex digits, of the
    input rows.  ``frontier``: after the call.  ``counts``: events by verdict, and ``absent`` keys.  ``outputs``: by
    name, without empty ones.  ``figures``: measurements by name.  ``origin``: the files that the rows were read from,
    if any.
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

    ``batch``: the number of the epoch in the query that feeds the state, if any.  ``digest``, ``written``: the digest
    and the date (unix milliseconds) of the manifest that committed the epoch; "" and None in that manifest itself.
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
        """Count the bytes that one output gained.  O(calls)."""
        return sum(blob.length for call in self.calls if output in call.outputs for blob in call.outputs[output].blobs)


class PastColumns(StrictRecord, frozen=True):
    """The columns that a plan had up to an epoch and has no longer: of ``inputs``, and of the tables of ``outputs``.

    Maps names to Arrow's serialized schemas in base64.
    """

    epoch: Natural
    inputs: dict[str, str]
    outputs: dict[str, str]


class Feed(StrictRecord, frozen=True):
    """The query that feeds a state.

    ``query``: its id, "" if none is known.  ``batch``: its last batch, from 0.  ``inputs``: the inputs that it has rows
    for, sorted; empty if they are unknown.
    """

    query: Annotated[str, Meta(max_length=QUERY)]
    batch: Natural
    inputs: tuple[str, ...] = ()


class AttachedSource(StrictRecord, frozen=True):
    """A source of a state.

    ``kind``, ``target``: the type of the source and its place, without credentials.  ``position``: how far it was read,
    as JSON that only the source understands.  ``left_out``: by input, the columns that appeared with its first rows and
    are not read.  ``reached``: all rows written before this time were read, in unix milliseconds; None if it is
    unknown.
    """

    kind: Name
    target: Path
    position: Any
    left_out: dict[str, tuple[str, ...]]
    reached: Moment | None = None


class AttachedSink(StrictRecord, frozen=True):
    """A sink of a state.

    ``kind``, ``target``: as in `AttachedSource`.  ``mode``: how the sink writes rows.  ``epoch``: the last one that
    needs no more writes.  ``written``: the last epoch with rows for the sink, and ``digest`` of its manifest, as the
    target itself reports them.  ``columns``: those that the table got.  ``syncing``: whether a sync adds columns to the
    table and has not filled them yet.
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
    """Raise `ValueError` if an output names a file twice.  ``calls``: the outputs of each call.  O(files)."""
    for outputs in calls:
        for output in outputs.values():
            if len(output.blobs) > 1 and len({blob.name for blob in output.blobs}) < len(output.blobs):
                raise ValueError(f"two of the {len(output.blobs)} files of an output are the same")


def damage_error(what: str, found: str) -> CorruptState:
    """Build the error for data that ddflow did not write."""
    return CorruptState(what, found, REMEDY)
