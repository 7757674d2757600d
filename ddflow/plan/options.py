"""Declare and check the options of `Flow.open`.

Invariant: each option is declared only once, as a field of `EngineOptions`. `accept_keyword_options` derives the
signature and the docstring of `Flow.open` from these fields. An invalid option raises an error, with the name of the
option, before anything opens. The engine locks the spill folder; `options.py` does not.

>>> EngineOptions(retain=-1)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: retain=-1: that is not a number of times; use a whole number, 0 or more
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from typing import Concatenate, Literal, ParamSpec, TypeVar

from ddflow.columns.hashing import Secret
from ddflow.connectors.parquet.sink import check_outputs_path
from ddflow.errors import Option, SpecError
from ddflow.metrics import Metrics
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.protocol import Store
from ddflow.time import parse_seconds

P = ParamSpec("P")
Owner = TypeVar("Owner")
Opened = TypeVar("Opened")


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine; see `Flow.open`.

    Parameters
    ----------
    state : str, path or Store, optional
        A folder, or ``s3://bucket/prefix``, to store the state in and to continue it from.  Without it, the state is
        in memory and lost when the engine closes.
    memory : str or int, optional
        The memory budget: a size such as ``"512MB"``, or a number of bytes.  By default there is no limit.
    spill : str or path, optional
        A folder that only this engine uses, for data over the budget.  A durable state contains its own spill folder.
        Without a folder, ddflow refuses a step whose state would exceed the budget.
    verdicts : {"counts", "rows"}
        "rows" also lists every event with its verdict.
    retain : int, optional
        How far back from the last closed time reads may go, 0 or more.  The unit is 1 for numeric times, days for
        dates, and the type's unit (mostly microseconds) for timestamps.  A state keeps its last setting; the default is
        0.  The first call with a smaller setting drops older history.
    threads : int or "auto"
        The number of threads for the kernels of a step, 1 or more.  "auto" is the number of cores, at most 8.  Small
        steps use one thread.  Results and state do not depend on the number of threads.
    secret : Secret, optional
        The secret that ddflow mixes into the identities of keys.  By default a new secret; an existing state keeps its
        secret.
    outputs : str or path, optional
        With a state: a folder for the updates of each committed epoch, as Parquet.  Only this state may use the folder.
        Without the option, the state keeps the updates of an epoch as long as you may ingest the epoch again.
    commit_every : str, optional
        With a state: when calls become an epoch.  With "call", each call is an epoch, committed before the call
        returns.  With a duration such as "50ms", all calls within it are one epoch; `Step.committed` and `Engine.flush`
        wait for the commit.  With None, all calls up to the next `Engine.flush` are one epoch.
    trust : {"owner", "group"}
        With a state: "group" accepts a folder of another user, or one that others can write to.
    grace : float
        With a state: how many seconds to keep a version for readers after its successor is committed.
    verify : {"open", "lazy"}
        With a state: when to compare the checksums of files.  "open" compares them before anything else, "lazy" in the
        background before the first commit.
    metrics : callable, optional
        A function to call with the `ddflow.metrics.CallMetrics` of each call that took effect.

    Returns
    -------
    Engine
        The open engine; with a ``state``, it continues after the last commit.

    Raises
    ------
    SpecError
        If the flow has no inputs or no outputs, or an option is invalid.
    SpillRefused, SpillInUse
        If the spill folder cannot be used.
    StateRefused, PlanChanged, CorruptState, StorageFailed
        If the state cannot be opened.

    Notes
    -----
    O(1) in memory. If ``state`` is given, O(bytes of the state).
    """

    state: str | PathLike[str] | Store | None = None
    _: KW_ONLY
    memory: str | int | None = None
    spill: str | PathLike[str] | None = None
    verdicts: Literal["counts", "rows"] = "counts"
    retain: int | None = None
    threads: int | Literal["auto"] = "auto"
    secret: Secret | None = None
    outputs: str | PathLike[str] | None = None
    commit_every: str | None = "call"
    trust: Literal["owner", "group"] = "owner"
    grace: float = GRACE
    verify: Literal["open", "lazy"] = "open"
    metrics: Metrics | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("verdicts", ("counts", "rows")),
            ("verify", ("open", "lazy")),
            ("trust", ("owner", "group")),
        ):
            if (given := getattr(self, name)) not in choices:
                raise SpecError(Option(name, given), "that is not a valid value", "use {!r} or {!r}".format(*choices))
        if self.commit_every not in (None, "call") and not parse_seconds(str(self.commit_every), "commit_every="):
            raise SpecError("commit_every=0", "that is not a duration", "omit it: every call is then an epoch")
        if self.state is None and (self.outputs is not None or self.commit_every != "call"):
            name = "outputs=" if self.outputs is not None else "commit_every="
            raise SpecError(name, "it has no effect without a state", "pass the folder of a state too")
        check_outputs_path(self.outputs)  # before anything is created
        for name, what, least in (("retain", "times", 0), ("threads", "threads", 1)):
            given = getattr(self, name)
            if given == ("auto" if name == "threads" else None):
                continue
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise SpecError(
                    Option(name, given),
                    f"that is not a number of {what}",
                    f"use a whole number, {least} or more" + (', or "auto"' if name == "threads" else ""),
                )


def accept_keyword_options(
    options: Callable[P, EngineOptions],
) -> Callable[[Callable[[Owner, EngineOptions], Opened]], Callable[Concatenate[Owner, P], Opened]]:
    """Turn a method that takes an options object into a method that takes each option as a keyword argument.

    Type checkers, editors and ``help`` show each option with its type, its default and its description.

    >>> class Plan:
    ...     @accept_keyword_options(EngineOptions)
    ...     def open(self, options: EngineOptions) -> int:
    ...         return options.threads
    >>> Plan().open(threads=2)
    2
    >>> Plan().open(thread=2)
    Traceback (most recent call last):
        ...
    TypeError: Plan.open() got an unexpected keyword argument 'thread'
    """

    def expand_method(method: Callable[[Owner, EngineOptions], Opened]) -> Callable[Concatenate[Owner, P], Opened]:
        taken = inspect.signature(options).parameters.values()

        @functools.wraps(method)
        def call_with_options(self: Owner, /, *args: P.args, **given: P.kwargs) -> Opened:
            try:
                signature.bind(self, *args, **given)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}() {error}") from None
            return method(self, options(*args, **given))

        me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.Signature([me, *taken], return_annotation=method.__annotations__.get("return"))
        _, _, described = (inspect.getdoc(options) or "").partition("\n\n")
        call_with_options.__doc__ = f"{method.__doc__}\n\n{described}"
        vars(call_with_options)["__signature__"] = signature
        return call_with_options

    return expand_method
