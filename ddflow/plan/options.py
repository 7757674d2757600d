"""Declare and check the options of `Flow.open`.

Invariant: each option is a field of `EngineOptions` and nowhere else; `accept_keyword_options` derives the signature
and docstring of `Flow.open` from these fields. An invalid option raises an error with its name before anything opens.
The engine, not this file, locks the spill folder.

>>> EngineOptions(retain=-1)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: retain=-1: that is no number of times; give a whole number, 0 or more
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
        A budget: a size such as ``"512MB"``, or a number of bytes.  By default there is no limit.
    spill : str or path, optional
        A folder that only this engine uses, for data over the budget.  A durable state has a spill folder itself.
        Without a folder, ddflow refuses a step whose state would exceed the budget.
    verdicts : {"counts", "rows"}
        "rows" also lists every event with its verdict.
    retain : int, optional
        How far back from the last closed time reads may go, 0 or more.  The unit is 1 for numeric times, days for
        dates, and the type's unit (mostly microseconds) for timestamps.  A state keeps its last setting; the default is
        0.  The first call with a smaller setting drops older history.
    threads : int or "auto"
        The number of threads for the kernels of a step, 1 or more; "auto": the number of cores, at most 8.  Small steps
        use one thread.  Results and state do not depend on it.
    secret : Secret, optional
        The secret to mix into identities.  By default a new one; an existing state keeps its secret.
    outputs : str or path, optional
        With a state: a folder that only this state uses, for the updates of each committed epoch as Parquet.  Without
        it, the state keeps the updates as long as the same epoch may be ingested again.
    commit_every : str, optional
        With a state: when calls become an epoch.  "call": each call, before it returns.  A span such as "50ms": all
        calls within the span; `Step.committed` and `Engine.flush` wait for the commit.  None: all calls up to the next
        `Engine.flush`.
    trust : {"owner", "group"}
        With a state: "group" accepts a folder of another user, or one that others can write to.
    grace : float
        With a state: how many seconds to keep a version for readers after its successor is committed.
    verify : {"open", "lazy"}
        With a state: when to compare the checksums of files.  "open": before anything else.  "lazy": in the background,
        before the first commit.
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
    O(1) in memory.  With a ``state``, O(bytes of the state).
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
                raise SpecError(Option(name, given), "that is no choice", "use {!r} or {!r}".format(*choices))
        if self.commit_every not in (None, "call") and not parse_seconds(str(self.commit_every), "commit_every="):
            raise SpecError("commit_every=0", "that is no span", "leave it out: every call is then an epoch")
        if self.state is None and (self.outputs is not None or self.commit_every != "call"):
            name = "outputs=" if self.outputs is not None else "commit_every="
            raise SpecError(name, "it has no effect without a state", "give the folder of a state too")
        check_outputs_path(self.outputs)  # before anything is created
        for name, what, least in (("retain", "times", 0), ("threads", "threads", 1)):
            given = getattr(self, name)
            if given == ("auto" if name == "threads" else None):
                continue
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise SpecError(
                    Option(name, given),
                    f"that is no number of {what}",
                    f"give a whole number, {least} or more" + (', or "auto"' if name == "threads" else ""),
                )


def accept_keyword_options(
    options: Callable[P, EngineOptions],
) -> Callable[[Callable[[Owner, EngineOptions], Opened]], Callable[Concatenate[Owner, P], Opened]]:
    """Turn a method with one options object into a method with a keyword argument for each option.

    Checkers, editors and ``help`` see the options with their types, defaults and text.

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
