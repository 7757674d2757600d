"""Declare the spec of an upsert input: its key, its order, its deletes and its options.

Guarantees: an unknown or contradictory option raises an error when the spec is created. For an unknown option, the
error suggests the most similar name. A spec is an immutable value, and contains no schema and no state. A keyed frame
pairs a spec with a frame of any library.

>>> spec = Upsert(key="id", order_by=["updated_at"], delete=tombstone("op", "D"))
>>> Upsert.from_json(spec.to_json()) == spec
True
>>> Upsert(key="id", late="drop")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: upserts keyed by ['id']: late='drop' has no effect without time=; name the time column, \
or omit late=
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, cast, get_args

import xxhash

from ddflow.columns.names import check_column_name, did_you_mean, parse_column_names
from ddflow.errors import ErrorText, ErrorTextPart, Option, SpecError, shorten
from ddflow.plan.inputs.watermark import Watermark, parse_watermark
from ddflow.plan.merge import checks
from ddflow.plan.merge.expiry import Expiry
from ddflow.plan.merge.merge import Merge

Made = TypeVar("Made")


def refuse_unknown_options(made: type[Made]) -> type[Made]:
    """Change a dataclass so that an unknown option raises `SpecError`. O(options) a call.

    >>> from dataclasses import dataclass
    >>> @refuse_unknown_options
    ... @dataclass(frozen=True)
    ... class Point:
    ...     across: int = 0
    >>> Point(across=3)
    Point(across=3)
    >>> Point(acros=3)
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: Point(acros=...): there is no such option; did you mean 'across'? the options are \
    ['across']
    """
    init: Any = vars(made)["__init__"]
    kept: Any = made
    known = [each.name for each in fields(kept) if each.init]

    @wraps(init)
    def check_and_init(self: Any, *given: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                asked = f"{made.__name__}({name}=...)"
                raise SpecError(asked, "there is no such option", did_you_mean(name, known, "options"))
        init(self, *given, **options)

    kept.__init__ = check_and_init
    return made


Tie = Literal["last", "first", "greatest", "error"]
Late = Literal["error", "drop", "advance"]
Stale = Literal["drop", "mark", "side"]
NullKeys = Literal["error", "drop", "keep"]
Versions = Literal["row", "cell"]
Deletes = Literal["row", "group"]
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "tie": get_args(Tie),
    "late": get_args(Late),
    "stale": get_args(Stale),
    "null_key": get_args(NullKeys),
    "versions": get_args(Versions),
    "deletes": get_args(Deletes),
}
Groups = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""For each group: the order columns of the group, and the other columns of the group."""


@dataclass(frozen=True, repr=False)
class Tombstone:
    """A column that marks deletes.  `tombstone` creates it.

    The column is not part of the row, unless ``value=`` of the spec names it.
    """

    column: str
    value: bool | int | float | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            remedy = ErrorText("name one column, as text; for several pass SQL, as in ", Option("delete", "a or b"))
            raise SpecError("dd.tombstone", f"its column is {self.column!r:.200}", remedy)
        if not isinstance(self.value, bool | int | float | str | None):
            remedy = ErrorText(
                "pass one text, number or boolean; for several pass SQL, as in ", Option("delete", "op in (1, 2)")
            )
            raise SpecError(f"dd.tombstone({self.column!r})", f"its value is {self.value!r:.200}", remedy)

    def __repr__(self) -> str:
        """Write the tombstone as Python code."""
        return f"dd.tombstone({self.column!r}{'' if self.value is None else f', {self.value!r}'})"


def tombstone(column: str, value: bool | int | float | str | None = None) -> Tombstone:
    """Declare the column that marks deletes, in any of TrinityLake's three forms.

    Parameters
    ----------
    column : str
        Without a ``value``, a boolean column deletes if it is true, and a column of another type deletes if it is not
        null, as in ``tombstone("deleted_at")``.  A text column needs a value, because otherwise every text would
        delete.
    value : bool, int, float or str, optional
        The value that deletes, as in ``tombstone("op", "D")``.

    Returns
    -------
    Tombstone
        An argument for ``delete=`` of `Upsert`.

    Raises
    ------
    SpecError
        If the column or the value has another type.

    Notes
    -----
    In all three forms, an event whose tombstone column is null does not delete the row. (TrinityLake, "Upsert",
    Tombstone Key.)
    """
    return Tombstone(column, value)


@refuse_unknown_options
@dataclass(frozen=True)
class Upsert:
    """Rules for the events of one upsert input.

    Parameters
    ----------
    key : str or sequence of str
        The columns that identify a row, of any flat Arrow type.  The only required field.
    order_by : str or sequence of str
        The composite watermark key: columns that order the events of a key.  They are compared left to right, null
        smallest, and the greatest event wins.
    tie : {"last", "first", "greatest", "error"}
        Which of two events with equal order wins: the last or first to arrive, the greatest row, or neither
        (`TieRefused`).
    seq : str, optional
        The integer column with the arrival sequence, for shuffled feeds.
    time : str, optional
        The column of times.  With it, the flow is in hold-back mode.
    delete : Tombstone or str, optional
        Which events delete: a `tombstone`, or a boolean SQL expression.
    late : {"error", "drop", "advance"}
        How to treat an event behind the frontier, or below the watermark; "advance" moves it to the frontier.
    lateness : int, optional
        In hold-back mode: the frontier is the greatest time seen, minus this number of the time column's units.
    stale : {"drop", "mark", "side"}
        How to treat an event older than the stored row of its key (see docs/semantics.md).
    null_key : {"error", "drop", "keep"}
        How to treat an event without a key; "drop" counts it under the verdict bad, "keep" accepts null as a key.
    noop_ignore : sequence of str
        Columns to ignore when deciding whether an event changes its row.
    track : sequence of str, optional
        The only columns to compare when deciding whether an event changes its row.  By default all of the row.
    where : str, optional
        Boolean SQL.  An event that fails it deletes its key; the filter runs before the upsert.
    value : sequence of str, optional
        The columns of a row beside the key.  By default all but the time, seq and tombstone columns.
    merge : Merge or "first_row", optional
        The `ddflow.Merge` that folds events as partial rows; "first_row" keeps the first row of each key.
    groups : mapping of str or tuple to sequence of str
        With merging: ``{order columns: columns}``; each group of columns has a separate order.
    exclusive : bool
        With ``groups``: treat an event as bad unless exactly one group has an order in it.
    deletes : {"row", "group"}
        With ``groups``: whether a delete removes the row, or clears the group with an order in the event.
    versions : {"row", "cell"}
        With merging: whether to keep one order for the whole row, or one for each cell.
    derive : mapping of str to str
        With merging: ``{column: SQL over the merged row}``.
    expiry : Expiry, optional
        How long to remember keys.
    ingested : str, optional
        The name of a new column with the time at which the row came: the time of the step or, in hold-back mode, the
        time at which the event counts.  It is the last column of the row, and is not compared to decide if a row
        changed.
    watermark : mapping of str to str or int, optional
        A column and a delay, such as ``{"at": "1 hour"}``; for a column of integers, the delay is a number.  No event
        touches an older row, so ddflow forgets older rows.  ``late`` says how to treat an event that does (see
        docs/guides/watermarks.md).
    ahead : str, optional
        With ``watermark``, in a flow with a clock: a row whose value is more than this after the time of the step, such
        as "1 day", is bad.  So one wrong year cannot move the watermark.

    Raises
    ------
    SpecError
        If fields are invalid or contradict one another.
    """

    key: Sequence[str]
    order_by: Sequence[str] = ()
    tie: Tie = "last"
    seq: str | None = None
    time: str | None = None
    delete: Tombstone | str | None = None
    late: Late = "error"
    stale: Stale = "drop"
    lateness: int | None = None
    null_key: NullKeys = "error"
    noop_ignore: Sequence[str] = field(default=())
    where: str | None = None
    value: Sequence[str] | None = None
    track: Sequence[str] | None = None
    merge: Merge | Literal["first_row"] | None = None
    groups: Mapping[str | tuple[str, ...], Sequence[str]] | Groups = ()
    exclusive: bool = False
    deletes: Deletes = "row"
    versions: Versions = "row"
    derive: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    expiry: Expiry | None = None
    ingested: str | None = None
    watermark: Mapping[str, str | int] | Watermark | None = None
    ahead: str | None = None

    def __post_init__(self) -> None:
        for name in ("key", "order_by", "noop_ignore", "value", "track"):
            given = getattr(self, name)
            if given is not None or name not in ("value", "track"):
                object.__setattr__(
                    self, name, parse_column_names(() if given is None else given, "an upsert spec", name)
                )
        for name in ("seq", "time", "ingested"):
            if getattr(self, name) is not None:
                check_column_name(getattr(self, name), "an upsert spec", name)
        object.__setattr__(self, "groups", checks.parse_groups(self.groups, self._raise_spec_error))
        object.__setattr__(self, "derive", checks.parse_derive(self.derive, self._raise_spec_error))
        self._check_names()
        checks.check_option_values(self, CHOICES, self._raise_spec_error)
        self._check_combinations()
        checks.check_merge_options(self, self._raise_spec_error)
        object.__setattr__(self, "watermark", parse_watermark(self, self._raise_spec_error))

    def _raise_spec_error(self, found: str | ErrorTextPart, fix: str | ErrorTextPart) -> NoReturn:
        raise SpecError(
            f"upserts keyed by {list(self.key)}", shorten(found, 600) if isinstance(found, str) else found, fix
        )

    def _check_names(self) -> None:
        if not self.key:
            raise SpecError("an upsert spec", "the key is empty", "name at least one key column")
        for name in ("key", "order_by", "noop_ignore", "value", "track"):
            columns = getattr(self, name) or ()
            twice = sorted({c for c in columns if columns.count(c) > 1})
            if twice:
                self._raise_spec_error(Option(name) + f" names {twice} more than once", "name each column once")
        for name in ("order_by", "noop_ignore", "track"):
            both = sorted(set(self.key) & set(getattr(self, name) or ()))
            if both:
                self._raise_spec_error(
                    Option(name) + f" names the key columns {both}",
                    "omit them: all events of a key have equal key columns",
                )
        for name in ("time", "seq"):
            column = getattr(self, name)
            if column is not None and column in self.key:
                self._raise_spec_error(
                    Option(name) + f" names the key column {column!r}",
                    "name another column: all events of a key have equal key columns",
                )
        if self.seq is not None and self.seq in (*self.order_by, self.time):
            self._raise_spec_error(
                ErrorText(Option("seq"), f" names {self.seq!r}, which is also in order_by or time"), "name it once"
            )
        if isinstance(self.delete, Tombstone) and self.delete.column in self.key:
            self._raise_spec_error(f"the tombstone {self.delete.column!r} is a key column", "name another column")
        for name in ("noop_ignore", "track") if self.value is not None else ():
            lost = [c for c in getattr(self, name) or () if c not in (self.value or ())]
            if lost:
                self._raise_spec_error(
                    Option(name) + f" names {lost}, but value= does not", "name them in both, or in neither"
                )
        if self.track is not None and self.noop_ignore:
            self._raise_spec_error(
                f"track={list(self.track)} and noop_ignore={list(self.noop_ignore)} both choose the columns that count",
                ErrorText(
                    "use one of them: ",
                    Option("track"),
                    " names the columns that count, ",
                    Option("noop_ignore"),
                    " the columns that do not",
                ),
            )

    def _check_combinations(self) -> None:
        checks.refuse_first_broken_rule(
            self._raise_spec_error,
            (
                self.delete is not None and not isinstance(self.delete, Tombstone | str),
                ErrorText(Option("delete"), f" is {type(self.delete).__name__}"),
                "use dd.tombstone(...) or an SQL expression",
            ),
            (
                self.time is None and not self.order_by and not self.groups and self.tie != "last",
                ErrorText(Option("tie", self.tie), " without ", Option("order_by")),
                ErrorText("arrival decides then, and there are no ties: name ", Option("order_by")),
            ),
            (
                self.stale != "drop" and self.time is not None and self.late != "advance",
                ErrorText(Option("stale", self.stale), " with ", Option("time")),
                ErrorText("set ", Option("late", "advance"), ": with a time column, only it makes events stale"),
            ),
            (
                self.tie in ("greatest", "error") and self.seq is not None,
                ErrorText(Option("seq"), " has no effect under ", Option("tie", self.tie)),
                "omit it",
            ),
        )

    def counts(self, column: str) -> bool:
        """Tell whether a column is compared to decide if a row changed. Key columns are never compared."""
        if column in self.key or column == self.ingested:
            return False
        return column not in self.noop_ignore if self.track is None else column in self.track

    @property
    def compares_all(self) -> bool:
        """Whether all non-key columns are compared to decide if a row changed.

        Columns that are added later are also compared.
        """
        return self.track is None and not self.noop_ignore

    @property
    def holds_back(self) -> bool:
        """Whether the spec names a time column, so that the input is in hold-back mode."""
        return self.time is not None

    @property
    def keeps_order(self) -> bool:
        """Whether to store the order of each key even after a delete.

        The order is needed if an older event can still arrive.
        """
        return self.late == "advance" if self.holds_back else bool(self.order_by or self.seq or self.groups)

    @property
    def grouped(self) -> Groups:
        """``groups`` as pairs: the order columns, and the columns of the group."""
        return cast("Groups", self.groups)

    @property
    def derived(self) -> tuple[tuple[str, str], ...]:
        """``derive`` as pairs of a column and its SQL."""
        return cast("tuple[tuple[str, str], ...]", self.derive)

    @property
    def merges(self) -> bool:
        """Whether events are folded into the row cell by cell, instead of replacing the row."""
        return self.merge is not None or bool(self.groups) or self.versions == "cell"

    @property
    def order_free(self) -> bool:
        """Whether results are the same for every order of arrival (docs/semantics.md, section 6).

        Results are the same if ``seq`` decides ties, if ties are refused, or if the greatest row wins. The option that
        the greatest row wins is not available in a merge of whole rows. The rule about ties applies to full rows and to
        ``versions="cell"``, and in hold-back mode to all merges. Other merges depend on the order of arrival. The row
        has only one order, so ddflow cannot know which cells an older event would still fill.
        """
        if self.merges and self.versions != "cell" and (not self.holds_back or self.late == "advance"):
            return False
        if not (self.order_by or self.holds_back or self.seq):
            return False
        greatest = self.tie == "greatest" and self.compares_all and (not self.merges or self.versions == "cell")
        return self.tie == "error" or greatest or self.seq is not None

    def to_json(self) -> str:
        """Write the spec as JSON for `from_json`.

        Fields are in order of declaration, and fields with default values are omitted.
        """
        out: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "key" and value == each.default:
                continue
            if isinstance(value, Tombstone):
                value = {"tombstone": value.column} | ({} if value.value is None else {"value": value.value})
            if isinstance(value, Merge | Expiry):
                value = value.to_json()
            if each.name == "watermark":
                value = dict(value)
            out[each.name] = value
        return json.dumps(out)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON that ``to_json`` writes. Raises `SpecError` if the JSON is invalid."""
        try:
            given = json.loads(text)
            if not isinstance(given, dict):
                raise ValueError("it is not a JSON object")
            delete = given.get("delete")
            if isinstance(delete, dict):
                given["delete"] = Tombstone(delete["tombstone"], delete.get("value"))
            if isinstance(given.get("merge"), dict):
                given["merge"] = Merge.of_json(given["merge"])
            if given.get("expiry") is not None:
                given["expiry"] = Expiry.of_json(given["expiry"])
            for name in ("groups", "derive"):
                if name in given:
                    given[name] = checks.convert_lists_to_tuples(given[name])
            return cls(**given)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError("an upsert spec from JSON", str(error), "pass the result of to_json()") from None

    @cached_property
    def fingerprint(self) -> str:
        """xxh3-128 of the JSON form, as 32 hex digits: equal for equal specs."""
        return xxhash.xxh3_128_hexdigest(self.to_json().encode())


@dataclass(frozen=True)
class KeyedFrame:
    """A frame whose rows are upserts. `keyed` creates this pair of a frame and a spec.

    Attributes
    ----------
    rows : object
        The frame.
    spec : Upsert
        The key, order and deletes of its rows.
    """

    rows: Any
    spec: Upsert


def keyed(rows: Any, spec: Upsert) -> KeyedFrame:
    """Pair a frame with a spec, so that a query treats the rows of the frame as upserts.

    A query treats each row of a frame without a spec as an added row.

    Parameters
    ----------
    rows : object
        The frame.
    spec : Upsert
        The key, order and deletes of its rows.

    Returns
    -------
    KeyedFrame
        The frame and the spec.

    Raises
    ------
    SpecError
        If the spec is not an `Upsert`.

    Examples
    --------
    On Spark, with a DataFrame ``df``::

        spark_bridge.sql("select count(*) n from orders", {"orders": dd.keyed(df, dd.Upsert(key="id"))})

    Notes
    -----
    O(1).

    >>> from ddflow.plan.inputs.spec import Upsert
    >>> table = keyed({"id": [1]}, Upsert(key="id"))
    >>> table.rows, table.spec.key
    ({'id': [1]}, ('id',))
    """
    if not isinstance(spec, Upsert):
        raise SpecError("a keyed frame", f"its spec is {spec!r:.99}", "pass dd.Upsert(key=...)")
    return KeyedFrame(rows, spec)
