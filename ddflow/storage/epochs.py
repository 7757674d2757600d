"""What a manifest keeps of the last epochs: their calls, what came of each, and the files that its outputs gained.

Invariant: an epoch that is given again is told from these, so a batch number must never be of another query than the
one that feeds the state, and no file is named twice by an output. It does not know what files hold, nor who fed them;
``manifest`` says where it stands.

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
"""Characters that the name of a query may have."""
Name = Annotated[str, Meta(min_length=1, max_length=QUERY)]


class Output(StrictRecord, frozen=True):
    """The files that hold what one output gained by a call, one or more in their order; how many ``rows`` all have."""

    blobs: Annotated[tuple[Blob, ...], Meta(min_length=1)]
    rows: Natural


class EpochCall(StrictRecord, frozen=True):
    """One call of an epoch, and what came of it.

    ``time``: of the step, or the frontier asked for; 0 for a push.  ``digest``: 32 hex digits, of the input rows.
    ``frontier``: after it.  ``counts``: events by verdict, ``absent`` keys.  ``outputs``: by name, where not empty.
    ``figures``: what was measured, by name.  ``origin``: the files that its rows were read from, where they were.
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
    """An epoch that was committed, call by call.  ``batch``: its number to the query that feeds the state, if any.
    ``digest``, ``written``: of the manifest that it was committed with, and when that was, in unix milliseconds; "" and
    None in that manifest itself."""

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
    """The columns that a plan had up to an epoch, and has no more: of ``inputs``, and of the tables of ``outputs``.

    By name, as Arrow's bytes of a schema in base64."""

    epoch: Natural
    inputs: dict[str, str]
    outputs: dict[str, str]


class Feed(StrictRecord, frozen=True):
    """Who feeds a state: a ``query`` by its id, "" where it has none that is known, and its last ``batch``, from 0.
    ``inputs``: those that it has rows for, sorted, none where that is not known."""

    query: Annotated[str, Meta(max_length=QUERY)]
    batch: Natural
    inputs: tuple[str, ...] = ()


class AttachedSource(StrictRecord, frozen=True):
    """A source of a state.  ``kind`` and ``target``: what it is and where, without credentials.  ``position``: how far
    it was read, as JSON that the source alone understands.  ``left_out``: by input that rows came for, the columns that
    stood beside the first of them and are not read.  ``reached``: what was written until then was taken, in unix
    milliseconds; None where that is not known."""

    kind: Name
    target: Path
    position: Any
    left_out: dict[str, tuple[str, ...]]
    reached: Moment | None = None


class AttachedSink(StrictRecord, frozen=True):
    """A sink of a state.

    ``kind``, ``target``: as of `AttachedSource`.  ``mode``: how rows are written there.  ``epoch``: the last that needs
    nothing more to be written.  ``written``: the last that had rows for it, with the ``digest`` of its manifest: what
    the target itself says.  ``columns``: those that the table was given.  ``syncing``: whether a sync adds columns to
    the table, and has not filled them yet.
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
    """Raise `ValueError` if an output names a file twice.  ``calls``: the outputs of each.  O(files)."""
    for outputs in calls:
        for output in outputs.values():
            if len(output.blobs) > 1 and len({blob.name for blob in output.blobs}) < len(output.blobs):
                raise ValueError(f"two of the {len(output.blobs)} files of an output are the same")


def damage_error(what: str, found: str) -> CorruptState:
    """Build the error for data that ddflow did not write."""
    return CorruptState(what, found, REMEDY)
