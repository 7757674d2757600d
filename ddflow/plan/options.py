"""What an engine is opened with: the options of `Flow.open`, declared and checked in one place.

Invariant: an option is a field here and nowhere else: `accept_keyword_options` gives `Flow.open` its signature and its
text from these fields. Options that exist can be run with; each mistake is an error that names the option, before
anything is opened. (The engine itself locks the spill folder.)

>>> EngineOptions(retain=-1)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: retain=-1: that is no number of times; give a whole number, 0 or more
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
    """How an engine is opened, see `Flow.open`.

    Parameters
    ----------
    state : str, path or Store, optional
        A folder, or ``s3://bucket/prefix``, that the state lives in and is continued from.  Without one, the state is
        in memory and lost with the engine.
    memory : str or int, optional
        A budget: a size such as ``"512MB"``, or a number of bytes.  By default there is no limit.
    spill : str or path, optional
        A folder for this engine alone, for what does not fit in the budget (a state brings its own).  Without one, a
        step whose state would exceed the budget is refused.
    verdicts : {"counts", "rows"}
        "rows" also lists every event with its verdict.
    retain : int, optional
        How far back from the last closed time reads may go, 0 or more: in numbers where times are numbers, in days
        where they are days, in their unit (mostly microseconds) where they are moments.  A state keeps what it was
        given last; by default 0.  A call under a smaller one lets older history go.
    threads : int or "auto"
        How many threads share the kernels of a step, 1 or more; "auto": as many as there are cores, at most 8.  A step
        that is too small to gain by it is one thread's.  Results do not depend on it, nor does a state.
    secret : Secret, optional
        What identities are mixed with.  By default a fresh one; a state that exists keeps its own.
    outputs : str or path, optional
        Of a state: a folder, of this state alone, in which each epoch's updates appear as Parquet once it is committed.
        Without one, the state keeps them for as long as an epoch may be given again.
    commit_every : str, optional
        Of a state: when calls become an epoch.  "call": each of them, before it returns.  A span such as "50ms": all
        calls within it, which `Step.committed` and `Engine.flush` wait for.  None: those before a `Engine.flush`.
    trust : {"owner", "group"}
        Of a state: "group" accepts a folder of another user, or one that others can write to.
    grace : float
        Of a state: how many seconds a version outlives its successor, for readers.
    verify : {"open", "lazy"}
        Of a state: when the checksums of files are compared.  "open" does it before all else; "lazy" in the background,
        before the first commit.
    metrics : callable, optional
        Called with the `ddflow.metrics.CallMetrics` of each call that took effect.

    Returns
    -------
    Engine
        Open; with a ``state``, it goes on after the last commit.

    Raises
    ------
    SpecError
        For a flow without inputs or outputs, and for an option that is no choice.
    SpillRefused, SpillInUse
        For the spill folder.
    StateRefused, PlanChanged, CorruptState, StorageFailed
        For the state.

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
        check_outputs_path(self.outputs)  # before anything is made
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
    """Turn a plan's method that takes the options as one object into one that takes each by its name.

    Checkers, editors and ``help`` see the options with their types, defaults and text.
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
