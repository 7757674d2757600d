"""Declare a state machine for the events of a key. A machine is a transition table or a function.

If a table has one start, and one target for each transition, each key has one value. For any other machine, each key
has a set of values. In JSON, a table is stored unchanged. A function is stored as a name and a digest of the code.

Invariant: a machine defines the successors of every state. If a transition has a target that is not in ``states``, the
declaration of the machine raises an error, before the first event. `machines.py` checks the columns of the events.
Rules: docs/semantics.md, section 11.

>>> door = Machine("door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked")
>>> door.table, door.several, Machine.of_json(door.to_json(), door.schema) == door
(True, False, True)
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn, Self, cast

import pyarrow as pa

from ddflow.columns.declared import to_arrow_type
from ddflow.columns.names import check_column_name, parse_column_names
from ddflow.columns.schema import is_flat_type
from ddflow.errors import ErrorText, ErrorTextPart, Option, SpecError
from ddflow.plan.merge.checks import refuse_first_broken_rule
from ddflow.plan.merge.user_function import KEYS, AbsentFunction, describe_function

Value = str | int | bool
Transition = Callable[..., Any] | Mapping[Any, Any]
MASK = 64
"""Maximum number of states of a table whose keys hold several values."""


@dataclass(frozen=True)
class Machine:
    """A state machine for the events of a key. A machine is a transition table or a function.

    Parameters
    ----------
    state : str or mapping of str to type
        The column of the state.  For a function: ``{column: type}`` with one or more columns, types as in
        `Flow.upserts`.
    transition : mapping or callable
        A table ``{(state, symbol): state}``, with a state or a set of states as targets.  States and symbols are text,
        whole numbers or booleans.  Or a function ``f(values, events)`` of two record batches with one event for each
        key.  ``values`` has the state's columns and ``_event``, the row number in ``events`` that a value belongs to.
        It returns the same columns in any order; equal values count once.
    on : str, optional
        For a table: the column of symbols.
    start : value, set of values or mapping
        For a table: the state, or set of states, of a new key.  For a function: the values of a new key, as ``{column:
        value}``, a list of such mappings, or nothing.
    states : iterable of values, optional
        All valid states.
    otherwise : {"error", "stay", "drop"}
        For a table: how to treat a value without a transition: refuse the step, keep the value, or drop it.
    scalar : bool
        Whether the function is ``f(values, event, out)``.  numba compiles it, and ddflow calls it for each event with
        records (see `ddflow.Merge`): the key's values, the event, and an output buffer of ``limit`` records.  All
        fields of the buffer are 0 and not null when a call starts.  The function returns the number of records it
        wrote.
    limit : int
        The maximum number of values of a key, 1 or more.

    Raises
    ------
    SpecError
        If the table or the function contradicts itself, for example by a target outside ``states``.
    NotArrow
        If a type is unknown.

    Notes
    -----
    If ``scalar`` is true, ddflow clears a buffer of ``limit`` records for every event. So large limits cost time. If
    keys hold several values, the table has at most 64 states.

    Examples
    --------
    >>> door = {("locked", "coin"): "open", ("open", "push"): "locked"}
    >>> Machine("door", door, on="symbol", start="locked").all_states
    ['locked', 'open']
    >>> Machine("door", {("locked", "coin"): "opne"}, on="symbol", start="locked", states=["locked", "open"])
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: dd.Machine: from 'locked' by 'coin' it goes to 'opne', which is not in states=; add it, \
or fix the table
    """

    state: str | Mapping[str, Any] | tuple[tuple[str, pa.DataType], ...]
    transition: Transition | tuple[tuple[Value, Value, tuple[Value, ...]], ...]
    on: str | None = None
    start: Any = None
    states: Iterable[Value] | None = None
    otherwise: Literal["error", "stay", "drop"] = "error"
    scalar: bool = False
    limit: int = 64

    def __post_init__(self) -> None:
        table = not callable(self.transition)
        number = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        refuse_first_broken_rule(
            self._raise_spec_error,
            (
                self.otherwise not in ("error", "stay", "drop"),
                f"otherwise={self.otherwise!r}",
                "use one of ['error', 'stay', 'drop']",
            ),
            (not (number and self.limit >= 1), Option("limit", self.limit), "use a whole number, 1 or more"),
        )
        if table:
            self._check_table()
        else:
            self._check_function()
        known: Any = self.states
        if known is not None and not (_is_multi_value(known) and all(isinstance(each, Hashable) for each in known)):
            self._raise_spec_error(f"states= is {self.states!r:.200}", "pass a list of states")
        given = (
            {self.state: self._infer_state_type()}
            if isinstance(self.state, str)
            else dict(self._parse_pairs("state", self.state))
        )
        kinds = {name: to_arrow_type(kind, f"dd.Machine, the state column {name!r}") for name, kind in given.items()}
        if not kinds or (table and len(kinds) != 1):
            self._raise_spec_error(
                ErrorText(Option("state"), f" has the columns {list(kinds)}"),
                "name one column for a table, one or more for a function",
            )
        for name, kind in kinds.items():
            if not is_flat_type(kind):
                self._raise_spec_error(
                    f"the state column {name!r} is {kind}", "use numbers, text, binary, dates, decimals"
                )
        object.__setattr__(self, "state", tuple(kinds.items()))
        if self.states is not None:
            object.__setattr__(self, "states", _sort_values(tuple(self.states)))
            self._check_states()

    def _raise_spec_error(self, found: str | ErrorTextPart, fix: str | ErrorTextPart) -> NoReturn:
        raise SpecError("dd.Machine", found, fix)

    def _parse_pairs(self, option: str, given: Any) -> tuple[tuple[str, Any], ...]:
        """Parse ``{column: value}`` into pairs."""
        try:
            pairs = tuple((name, each) for name, each in (given.items() if isinstance(given, Mapping) else given))
        except (TypeError, ValueError):
            remedy = "pass {column: type}" if option == "state" else "pass {column: value}, or a list of such mappings"
            self._raise_spec_error(Option(option) + f" has {given!r:.200}", remedy)
        parse_column_names([name for name, _ in pairs], "dd.Machine", option)
        return pairs

    def _check_table(self) -> None:
        refuse_first_broken_rule(
            self._raise_spec_error,
            (self.scalar, "scalar=True with a table", "omit it: tables are compiled anyway"),
            (self.on is None, "a table without on=", "name the column of symbols"),
        )
        check_column_name(self.on, "dd.Machine", "on")
        given: Any = self.transition
        if isinstance(given, Mapping):
            if not all(isinstance(each, tuple) and len(each) == 2 for each in given):
                self._raise_spec_error(f"transition= has {next(iter(given), None)!r}", "pass {(state, symbol): state}")
            given = [(state, symbol, to) for (state, symbol), to in given.items()]
        if not isinstance(given, tuple | list) or not given:
            self._raise_spec_error("transition= is empty", "pass {(state, symbol): state}")
        if not all(isinstance(each, tuple | list) and len(each) == 3 for each in given):
            self._raise_spec_error(f"transition= is {given!r:.200}", "pass {(state, symbol): state}")
        several = isinstance(self.start, list | set | frozenset | tuple) or any(_is_multi_value(to) for *_, to in given)
        rows = sorted(
            ((state, symbol, _sort_values(to)) for state, symbol, to in given), key=lambda each: repr(each[:2])
        )
        start = _sort_values(self.start)
        for each in (*(value for state, symbol, to in rows for value in (state, symbol, *to)), *start):
            if not isinstance(each, str | int):
                self._raise_spec_error(
                    f"{each!r} is a {type(each).__name__}",
                    "pass start=, and use text, whole numbers or booleans for states and symbols",
                )
        # If keys hold several values, even a single target is stored as a set, so that of_json reads the same machine.
        made = tuple((state, symbol, list_ if several else list_[0]) for state, symbol, list_ in rows)
        object.__setattr__(self, "transition", made)
        object.__setattr__(self, "start", start if several else start[0])
        if several and len(self.all_states) > MASK:
            self._raise_spec_error(
                f"it has {len(self.all_states)} states, and a key may hold several of them",
                f"use at most {MASK} states, or a function",
            )

    def _check_function(self) -> None:
        start: Any = self.start
        refuse_first_broken_rule(
            self._raise_spec_error,
            (
                self.on is not None or self.otherwise != "error",
                "on= or otherwise= with a function",
                "omit them: they are options of a table",
            ),
            (
                self.scalar and self.states is not None,
                "states= with scalar=True",
                "omit it, and check the states in the function",
            ),
            (
                isinstance(self.state, str),
                ErrorText(Option("state", self.state), " of a function has no type"),
                "pass {column: type}",
            ),
            (
                start is not None and not isinstance(start, Mapping | list | tuple),
                f"start= is {start!r:.200}",
                "pass {column: value}, or a list of such mappings",
            ),
        )
        listed = [self._parse_pairs("start", each) for each in ([start] if isinstance(start, Mapping) else start or ())]
        names = [name for name, _ in self._parse_pairs("state", self.state)]
        if len(listed) > self.limit:
            self._raise_spec_error(
                ErrorText(f"start= has {len(listed)} values, but ", Option("limit"), f" is {self.limit}"),
                ErrorText("raise ", Option("limit"), ", or start with fewer values"),
            )
        for each in listed:
            if sorted(name for name, _ in each) != sorted(names):
                self._raise_spec_error(f"start= has {dict(each)!r}", f"pass a value for each of {names}")
        object.__setattr__(self, "start", tuple(dict.fromkeys(tuple(dict(each).items()) for each in listed)))

    def _check_states(self) -> None:
        known: Any = self.states
        for state, symbol, to in self.rows if self.table else ():
            for each in (state, *to):
                if each not in known:
                    self._raise_spec_error(
                        f"from {state!r} by {symbol!r} it goes to {each!r}, which is not in states=",
                        "add it, or fix the table",
                    )
        if self.table and (lost := [each for each in _sort_values(self.start) if each not in known]):
            self._raise_spec_error(f"start= is {lost[0]!r}, which is not in states=", "start with one of the states")
        if not self.table and len(self.schema) != 1:
            self._raise_spec_error(
                f"states= with the columns {self.schema.names}", "omit it: it works only with one column"
            )

    def _infer_state_type(self) -> pa.DataType:
        kinds = {type(each) for each in self.all_states}
        if len(kinds) != 1:
            self._raise_spec_error(f"states are of {sorted(each.__name__ for each in kinds)}", "use values of one type")
        return {str: pa.string(), bool: pa.bool_()}.get(kinds.pop(), pa.int64())

    @property
    def table(self) -> bool:
        """Whether the machine is a transition table."""
        return not callable(self.transition)

    @property
    def several(self) -> bool:
        """Whether a key can hold several values.

        The result is False for a table with one start, and one target for each transition.
        """
        return not self.table or isinstance(self.start, tuple)

    @property
    def rows(self) -> tuple[tuple[Value, Value, tuple[Value, ...]], ...]:
        """The rows of the transition table. A row has a state, a symbol and the target states."""
        return tuple((state, symbol, _sort_values(to)) for state, symbol, to in cast("Any", self.transition))

    @property
    def all_states(self) -> list[Value]:
        """The states of a table, sorted."""
        found = {value for state, _, to in self.rows for value in (state, *to)} | set(_sort_values(self.start))
        return sorted(found | set(cast("Any", self.states) or ()), key=lambda each: (type(each).__name__, each))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state."""
        return pa.schema([pa.field(name, kind) for name, kind in cast("Any", self.state)])

    def to_json(self) -> dict[str, Any]:
        """Write a table unchanged, and a function as a name and a digest of the code. `schema` has the types."""
        out: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("state", "transition") or value == each.default:
                continue
            out[each.name] = (
                value if each.name != "start" or self.table else [_convert_to_json_values(one) for one in value]
            )
        out["transition"] = (
            [list(row) for row in cast("Any", self.transition)] if self.table else describe_function(self.transition)
        )
        return cast("dict[str, Any]", _convert_tuples_to_lists(out))

    @classmethod
    def of_json(cls, given: Mapping[str, Any], schema: pa.Schema) -> Self:
        """Read the JSON that `to_json` writes. A function is read without its code.

        Raises `SpecError` if the JSON is invalid.
        """
        rest, transition = dict(given), given.get("transition")
        state = tuple((field.name, field.type) for field in schema)
        try:
            if isinstance(transition, dict):
                if set(transition) != set(KEYS):
                    raise ValueError("its transition is not valid")
                rest["start"] = tuple(tuple(zip(schema.names, each, strict=True)) for each in rest.get("start", ()))
                # The types of start values can be lost in JSON. ddflow only compares start values, so the loss does no
                # harm.
                return cls(**rest | {"state": state, "transition": AbsentFunction.of_json(transition)})
            rest["transition"] = tuple((state_, symbol, to) for state_, symbol, to in cast("Any", transition))
            return cls(**rest | {"state": state})
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError("a machine from JSON", str(error), "pass the result of to_json()") from None


def _is_multi_value(value: Any) -> bool:
    return isinstance(value, list | set | frozenset | tuple)


def _sort_values(value: Any) -> tuple[Any, ...]:
    several = tuple(value) if _is_multi_value(value) else (value,)
    try:
        return tuple(sorted(set(several), key=lambda each: (type(each).__name__, each)))
    except TypeError:
        return several  # the caller refuses them


def _convert_to_json_values(values: tuple[tuple[str, Any], ...]) -> list[Any]:
    return [value if isinstance(value, str | int | float | None) else repr(value) for _, value in values]


def _convert_tuples_to_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _convert_tuples_to_lists(each) for name, each in value.items()}
    return [_convert_tuples_to_lists(each) for each in value] if isinstance(value, tuple | list) else value
