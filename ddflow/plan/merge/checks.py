"""Check the merge and expiry options of a spec for contradictions, without a schema.

Invariant: in a valid spec, every merge option has an effect and no two options contradict each other. ``groups``,
``versions``, ``merge`` and ``derive`` imply or exclude one another. For some strategies, the result is independent of
arrival order only if there are no deletes. Checks that need column names and types are in `bound.py`.

>>> from ddflow.plan.inputs.spec import Upsert
>>> Upsert("id", derive={"total": "score + bonus"})
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: upserts keyed by ['id']: derive= names ['total'], without merge=; pass merge=, \
or compute the column in a projection: full rows are not changed
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ddflow.columns.names import parse_column_names
from ddflow.errors import ErrorText, ErrorTextPart, Option
from ddflow.plan.merge.expiry import Expiry
from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.strategy import COMMUTING, ORDER_FREE, WITHOUT_DELETES, Strategy, last_non_null

Refuse = Callable[[str | ErrorTextPart, str | ErrorTextPart], NoReturn]
"""A function that raises the error for a bad spec. The arguments are texts for the problem and for the remedy.

In this file, ``spec`` is a `ddflow.plan.inputs.spec.Upsert`. The constructor of `Upsert` calls the checks.
"""


def parse_groups(given: Any, refuse: Refuse) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Parse ``groups=`` into pairs of order columns and other columns. ``refuse`` raises the error."""
    try:
        pairs = list(given.items()) if isinstance(given, Mapping) else [(of, columns) for of, columns in given]
    except (TypeError, ValueError):
        refuse(
            ErrorText(Option("groups"), f" is {given!r}"), "pass {order column, or a tuple of order columns: columns}"
        )

    option = "an upsert spec", "groups"
    return tuple((parse_column_names(of, *option), parse_column_names(columns or (), *option)) for of, columns in pairs)


def parse_derive(given: Any, refuse: Refuse) -> tuple[tuple[str, str], ...]:
    """Parse ``derive=`` into pairs of a column and SQL."""
    try:
        pairs = list(given.items()) if isinstance(given, Mapping) else [(name, text) for name, text in given]
    except (TypeError, ValueError):
        refuse(ErrorText(Option("derive"), f" is {given!r}"), "pass {column: SQL over the merged row}")
    for name, text in pairs:
        if not isinstance(name, str) or not isinstance(text, str):
            refuse(ErrorText(Option("derive"), f" holds {name!r}: {text!r}"), "pass column names and SQL as text")
    twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
    if twice:
        refuse(ErrorText(Option("derive"), f" names {twice} more than once"), "derive each column once")
    return tuple(pairs)


def convert_lists_to_tuples(value: Any) -> Any:
    """Convert nested lists, as read from JSON, to tuples."""
    return tuple(convert_lists_to_tuples(each) for each in value) if isinstance(value, list) else value


def refuse_first_broken_rule(refuse: Refuse, *rules: tuple[bool, str | ErrorTextPart, str | ErrorTextPart]) -> None:
    """Raise the error of the first broken rule.

    Each of ``rules`` has three parts: whether the rule is broken, the problem, and the remedy.
    """
    for broken, found, fix in rules:
        if broken:
            refuse(found, fix)


def check_option_values(spec: Any, choices: Mapping[str, tuple[str, ...]], refuse: Refuse) -> None:
    """Refuse unknown values of options, and refuse each option about late events that would have no effect.

    ``choices``: the known values of each option.
    """
    for name, known in choices.items():
        if getattr(spec, name) not in known:
            refuse(Option(name, getattr(spec, name)), f"use one of {list(known)}")
    refuse_first_broken_rule(
        refuse,
        (
            spec.time is None and spec.watermark is None and spec.late != "error",
            ErrorText(Option("late", spec.late), " has no effect without ", Option("time")),
            ErrorText("name the time column, or omit ", Option("late")),
        ),
        (
            spec.time is None and spec.lateness is not None,
            ErrorText(Option("lateness"), " has no effect without ", Option("time")),
            ErrorText("name the time column, or omit ", Option("lateness")),
        ),
        (
            spec.lateness is not None and not (isinstance(spec.lateness, int) and spec.lateness >= 0),
            Option("lateness", spec.lateness),
            "use a whole number of the time column's unit, 0 or more",
        ),
    )


def check_merge_options(spec: Any, refuse: Refuse) -> None:
    """Refuse a spec whose options of merging or expiry contradict each other."""
    grouped = spec.deletes != "row"
    refuse_first_broken_rule(
        refuse,
        (
            spec.merge is not None and spec.merge != "first_row" and not isinstance(spec.merge, Merge),
            ErrorText(Option("merge"), f" is {spec.merge!r}"),
            "use dd.Merge(...), or 'first_row'",
        ),
        (not isinstance(spec.exclusive, bool), f"exclusive={spec.exclusive!r}", "use True or False"),
        (
            spec.exclusive and not spec.groups,
            ErrorText("exclusive=True without ", Option("groups")),
            "name the groups, or omit exclusive=",
        ),
        (
            grouped and not spec.groups,
            ErrorText(f"deletes={spec.deletes!r} without ", Option("groups")),
            "name the groups, or omit deletes=",
        ),
        (
            grouped and spec.delete is None and spec.where is None,
            ErrorText(f"deletes={spec.deletes!r} without ", Option("delete")),
            "say which events delete, or omit deletes=",
        ),
        (
            bool(spec.derive) and not spec.merges,
            ErrorText(Option("derive"), f" names {[name for name, _ in spec.derive]}, without ", Option("merge")),
            ErrorText(
                "pass ",
                Option("merge"),
                ", or compute the column in a projection: full rows are not changed",
            ),
        ),
    )
    _check_named_columns(spec, refuse)
    if spec.groups or spec.versions == "cell":
        _check_group_orders(spec, refuse)
    if spec.versions == "cell":
        _check_arrival_order(spec, refuse)
    if spec.expiry is not None:
        _check_expiry(spec, refuse)


def _check_named_columns(spec: Any, refuse: Refuse) -> None:
    """Refuse a column that one option names but another option excludes."""
    owner: dict[str, str] = dict.fromkeys(spec.key, "a key column")
    owner |= dict.fromkeys(spec.order_by, "in order_by")
    for option in ("time", "seq"):
        if getattr(spec, option) is not None:
            owner.setdefault(getattr(spec, option), f"the {option} column")
    if not all(of for of, _ in spec.grouped):
        refuse(ErrorText(Option("groups"), " has a group without an order column"), "name one, or remove the group")
    grouped: dict[str, str] = {}
    orders = [column for of, _ in spec.grouped for column in of]
    decided = [column for _, columns in spec.grouped for column in columns]
    once = "name a column in one group only, and no key, order, sequence or time column"
    for those, does, said, remedy in (
        (orders, "orders by", "an order column of groups=", "use separate order columns for each group"),
        (decided, "decides", "already in a group", once),
    ):
        for column in those:
            if not isinstance(column, str) or column in owner or column in grouped:
                what = owner.get(column, grouped.get(column, "not a name"))
                refuse(ErrorText(Option("groups"), f" {does} {column!r}, which is {what}"), remedy)
            grouped[column] = said
    owner |= {name: grouped[name] for name in orders}
    named = list(spec.merge.strategies) if isinstance(spec.merge, Merge) else []
    computed = {name for name, _ in spec.derived}
    for option, those in (("merge=", named), ("derive=", [name for name, _ in spec.derived])):
        for column in those:
            if column in owner:
                refuse(
                    f"{option} names {column!r}, which is {owner[column]}",
                    "name another column: keys, orders, sequences and times are never merged or derived",
                )
            if option == "merge=" and column in computed:
                refuse(
                    ErrorText(Option("merge"), " and ", Option("derive"), f" both name {column!r}"),
                    "name it in one of them",
                )
    if spec.value is not None and (lost := [c for c in (*named, *computed) if c not in spec.value]):
        refuse(
            ErrorText(f"value= does not name {lost}, but ", Option("merge"), " or ", Option("derive"), " does"),
            "name them in both, or in neither",
        )


def _check_group_orders(spec: Any, refuse: Refuse) -> None:
    """Check the options that ``groups=`` or ``versions="cell"`` excludes or requires."""
    what = Option("groups") if spec.groups else Option("versions", "cell")
    given = "merge='first_row'" if spec.merge == "first_row" else "a function of merge="
    refuse_first_broken_rule(
        refuse,
        (
            bool(spec.groups) and spec.versions == "cell",
            ErrorText(
                Option("groups"), " and ", Option("versions", "cell"), " both choose the order that decides a cell"
            ),
            "omit one of them",
        ),
        (
            spec.merge == "first_row" or (isinstance(spec.merge, Merge) and spec.merge.function is not None),
            f"{given} with " + what,
            "omit " + what + ": it merges complete rows",
        ),
        (
            spec.holds_back and spec.late != "advance",
            what + " in hold-back mode stores no order from one time to the next",
            ErrorText("use ", Option("late", "advance"), ", or omit ", Option("time")),
        ),
        (
            spec.versions == "cell" and not spec.keeps_order,
            ErrorText(Option("versions", "cell"), " without ", Option("order_by")),
            "name the order that decides a cell",
        ),
    )


def _check_arrival_order(spec: Any, refuse: Refuse) -> None:
    """Refuse strategies whose result depends on arrival order if the spec has ``versions="cell"``."""
    deletes = spec.delete is not None or spec.where is not None
    merge = spec.merge if isinstance(spec.merge, Merge) else Merge()
    for name, strategy in (*merge.strategies.items(), ("default", merge.default or last_non_null())):
        if (why := find_arrival_dependence(strategy, deletes)) is not None:
            refuse(
                ErrorText(
                    f"{why} for {name!r} depends on the order of arrival under ",
                    Option("versions", "cell"),
                    f"{' with deletes' * deletes}",
                ),
                ErrorText("use dd.last_non_null() or dd.last(), or ", Option("versions", "row")),
            )


def find_arrival_dependence(strategy: Strategy, deletes: bool) -> Strategy | None:
    """Return the strategy, or that of a field, whose result depends on arrival order with ``versions="cell"``."""
    if strategy.name == "fields":
        # A struct is one cell with one order. So the fields of a struct need strategies that ignore order.
        parts = [each for _, each in strategy.parts or ()] + [strategy.default or last_non_null()]
        return next((each for each in parts if deletes or each.name not in COMMUTING), None)
    free = ORDER_FREE if deletes else ORDER_FREE | WITHOUT_DELETES
    return None if strategy.name in free else strategy


def _check_expiry(spec: Any, refuse: Refuse) -> None:
    """Refuse an expiry if the spec does not have exactly one order column."""
    orders = [*spec.order_by, *(column for of, _ in spec.grouped for column in of)]
    refuse_first_broken_rule(
        refuse,
        (not isinstance(spec.expiry, Expiry), f"expiry= is {spec.expiry!r}", "use dd.Expiry(ttl=...)"),
        (
            spec.holds_back,
            ErrorText(
                "expiry= in hold-back mode, which forgets deleted keys at once and handles old events by ",
                Option("late"),
            ),
            ErrorText("omit ", Option("time"), " and name its column in ", Option("order_by"), ", or omit expiry="),
        ),
        (
            len(spec.order_by) != 1 or bool(spec.groups),
            f"expiry= with {len(orders)} order columns {orders}",
            ErrorText("use one ", Option("order_by"), " column, because a time to live refers to one"),
        ),
    )
