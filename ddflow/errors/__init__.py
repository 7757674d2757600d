"""Every exception ddflow raises on purpose: one class a remedy, one message template.

Invariant: a class is chosen by *what the reader has to do next*, not by where it was raised; two places that need the
same remedy raise the same class. A class's docstring is its entry in the index of errors: what it means, and, behind
"What to do:", the remedy. Nothing here formats data frames, logs or exits.

>>> error = TimeWentBack("cannot advance to 4", "the frontier is already 7", "times may not go back")
>>> raise error
Traceback (most recent call last):
    ...
ddflow.errors.TimeWentBack: cannot advance to 4: the frontier is already 7; times may not go back
"""

from ddflow.errors.base import DdflowError
from ddflow.errors.base import cut as cut
from ddflow.errors.engines import (
    BudgetExceeded,
    ConcurrentUse,
    EngineClosed,
    OutOfMemory,
    SpillFailed,
    SpillFull,
    SpillInUse,
    SpillRefused,
)
from ddflow.errors.events import (
    BadMessage,
    DuplicateKeys,
    EmptyContents,
    LateEvent,
    LogUnclear,
    NotArrow,
    NullKey,
    OutOfScope,
    SchemaMismatch,
    TieRefused,
    TimeWentBack,
    TooManyAbsent,
)
from ddflow.errors.files import (
    OutputExists,
    SinkAhead,
    SinkFailed,
    SinkRefused,
    SourceChanged,
    SourceFailed,
    UnreadableInput,
    UnwritableOutput,
)
from ddflow.errors.jobs import FeedChanged, Misrouted, MissingReceipts, ReceiptsDisagree
from ddflow.errors.plans import (
    AggregateFailed,
    ExpressionError,
    IllegalTransition,
    MergerFailed,
    MissingExtra,
    NoSuchVerb,
    NotInvariant,
    PlanChanged,
    SpecError,
    WrongMode,
)
from ddflow.errors.plans import import_extra as import_extra
from ddflow.errors.results import (
    AggregateOverflow,
    CountOverflow,
    ListTooLong,
    MergeOverflow,
    NegativeMultiplicity,
    NoSuchOutput,
    NotHeld,
    NotReadable,
    NotSingle,
    NotUnique,
    TooLarge,
)
from ddflow.errors.states import (
    CorruptState,
    EpochSkipped,
    Fenced,
    OutcomeUnknown,
    ReplayMismatch,
    SnapshotExpired,
    StateRefused,
    StorageFailed,
    StorageFull,
)

__all__ = [
    "AggregateFailed",
    "AggregateOverflow",
    "BadMessage",
    "BudgetExceeded",
    "ConcurrentUse",
    "CorruptState",
    "CountOverflow",
    "DdflowError",
    "DuplicateKeys",
    "EmptyContents",
    "EngineClosed",
    "EpochSkipped",
    "ExpressionError",
    "FeedChanged",
    "Fenced",
    "IllegalTransition",
    "LateEvent",
    "ListTooLong",
    "LogUnclear",
    "MergeOverflow",
    "MergerFailed",
    "Misrouted",
    "MissingExtra",
    "MissingReceipts",
    "NegativeMultiplicity",
    "NoSuchOutput",
    "NoSuchVerb",
    "NotArrow",
    "NotHeld",
    "NotInvariant",
    "NotReadable",
    "NotSingle",
    "NotUnique",
    "NullKey",
    "OutOfMemory",
    "OutOfScope",
    "OutcomeUnknown",
    "OutputExists",
    "PlanChanged",
    "ReceiptsDisagree",
    "ReplayMismatch",
    "SchemaMismatch",
    "SinkAhead",
    "SinkFailed",
    "SinkRefused",
    "SnapshotExpired",
    "SourceChanged",
    "SourceFailed",
    "SpecError",
    "SpillFailed",
    "SpillFull",
    "SpillInUse",
    "SpillRefused",
    "StateRefused",
    "StorageFailed",
    "StorageFull",
    "TieRefused",
    "TimeWentBack",
    "TooLarge",
    "TooManyAbsent",
    "UnreadableInput",
    "UnwritableOutput",
    "WrongMode",
]
