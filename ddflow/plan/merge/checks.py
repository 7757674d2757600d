"""Check the merge and expiry options of a spec for contradictions, without a schema.

Invariant: in a valid spec, every merge option has an effect and no two options contradict each other. ``groups``,
``versions``, ``merge`` and ``derive`` imply or exclude one another. Some strategies are independent of arrival order
only without deletes. Checks that need column names and types are in `bound.py`.

>>> from ddflow.plan.inputs.spec import Upsert
>>> Upsert("id", derive={"total": "score + bonus"})
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: upserts keyed by ['id']: derive= names ['total'], without merge=; a full row is given as it \
is: give merge=, or project the output
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ddflow.columns.names import parse_column_names
from ddflow.errors import ErrorText, ErrorTextPart, Option
from ddflow.plan.merge.expiry import Expiry
from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.strategy import COMMUTING, ORDER_FREE, WITHOUT_DELETES, Strategy, last_non_null

Refuse = Callable[[str | ErrorTextPart, str | ErrorTextPart], NoReturn]
"""A function that raises the error; its arguments are the finding and the remedy.

In this file, ``spec`` is an `ddflow.plan.inputs.spec.Upsert`; its constructor calls these checks.
"""


def parse_groups(given: Any, refuse: Refuse) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Parse ``groups=`` into pairs of tuples: order columns, columns.  ``refuse`` raises the error."""
    try:
        pairs = list(given.items()) if isinstance(given, Mapping) else [(of, columns) for of, columns in given]
    except (TypeError, ValueError):
        refuse(ErrorText(Option("groups"), f" is {given!r}"), "give {order column, or a tuple of them: columns}")

    option = "an upsert spec", "groups"
    return tuple((parse_column_names(of, *option), parse_column_names(columns or (), *option)) for of, columns in pairs)


def parse_derive(given: Any, refuse: Refuse) -> tuple[tuple[str, str], ...]:
    """Parse ``derive=`` into pairs of a column and SQL."""
    try:
        pairs = list(given.items()) if isinstance(given, Mapping) else [(name, text) for name, text in given]
    except (TypeError, ValueError):
        refuse(ErrorText(Option("derive"), f" is {given!r}"), "give {column: SQL over the merged row}")
    for name, text in pairs:
        if not isinstance(name, str) or not isinstance(text, str):
            refuse(ErrorText(Option("derive"), f" holds {name!r}: {text!r}"), "give column names and SQL as text")
    twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
    if twice:
        refuse(ErrorText(Option("derive"), f" names {twice} more than once"), "derive each column once")
    return tuple(pairs)


def convert_lists_to_tuples(value: Any) -> Any:
    """Convert nested lists, as read from JSON, to tuples."""
    return tuple(convert_lists_to_tuples(each) for each in value) if isinstance(value, list) else value


def refuse_first_broken_rule(refuse: Refuse, *rules: tuple[bool, str | ErrorTextPart, str | ErrorTextPart]) -> None:
    """Raise the error of the first broken rule.  ``rules``: whether the rule is broken, the finding, the remedy."""
    for broken, found, fix in rules:
        if broken:
            refuse(found, fix)


def check_option_values(spec: Any, choices: Mapping[str, tuple[str, ...]], refuse: Refuse) -> None:
    """Refuse unknown values, and options of late events without effect.  ``choices``: known values, by option."""
    for name, known in choices.items():
        if getattr(spec, name) not in known:
            refuse(Option(name, getattr(spec, name)), f"use one of {list(known)}")
    refuse_first_broken_rule(
        refuse,
        (
            spec.time is None and spec.late != "error",
            ErrorText(Option("late", spec.late), " has no effect without ", Option("time")),
            ErrorText("name the time column, or leave ", Option("late"), " out"),
        ),
        (
            spec.time is None and spec.lateness is not None,
            ErrorText(Option("lateness"), " has no effect without ", Option("time")),
            ErrorText("name the time column, or leave ", Option("lateness"), " out"),
        ),
        (
            spec.lateness is not None and not (isinstance(spec.lateness, int) and spec.lateness >= 0),
            Option("lateness", spec.lateness),
            "give a whole number of the time column's unit, 0 or more",
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
            "give dd.Merge(...), or 'first_row'",
        ),
        (not isinstance(spec.exclusive, bool), f"exclusive={spec.exclusive!r}", "give True or False"),
        (
            spec.exclusive and not spec.groups,
            ErrorText("exclusive=True without ", Option("groups")),
            "name the groups, or leave it out",
        ),
        (
            grouped and not spec.groups,
            ErrorText(f"deletes={spec.deletes!r} without ", Option("groups")),
            "name the groups, or leave it out",
        ),
        (
            grouped and spec.delete is None and spec.where is None,
            ErrorText(f"deletes={spec.deletes!r} without ", Option("delete")),
            "say which events delete, or leave it out",
        ),
        (
            bool(spec.derive) and not spec.merges,
            ErrorText(Option("derive"), f" names {[name for name, _ in spec.derive]}, without ", Option("merge")),
            ErrorText("a full row is given as it is: give ", Option("merge"), ", or project the output"),
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
    """Refuse columns that one option names and another rules out."""
    owner: dict[str, str] = dict.fromkeys(spec.key, "a key column")
    owner |= dict.fromkeys(spec.order_by, "in order_by")
    for option in ("time", "seq"):
        if getattr(spec, option) is not None:
            owner.setdefault(getattr(spec, option), f"the {option} column")
    if not all(of for of, _ in spec.grouped):
        refuse(ErrorText(Option("groups"), " has a group without an order column"), "name one, or leave the group out")
    grouped: dict[str, str] = {}
    orders = [column for of, _ in spec.grouped for column in of]
    decided = [column for _, columns in spec.grouped for column in columns]
    once = "a column is in one group, and is no key, order, sequence or time column"
    for those, does, said, remedy in (
        (orders, "orders by", "an order column of groups=", "give each group order columns of its own"),
        (decided, "decides", "in a group already", once),
    ):
        for column in those:
            if not isinstance(column, str) or column in owner or column in grouped:
                what = owner.get(column, grouped.get(column, "no name"))
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
                    "keys, orders, sequences and times are never merged or derived",
                )
            if option == "merge=" and column in computed:
                refuse(
                    ErrorText(Option("merge"), " and ", Option("derive"), f" both name {column!r}"),
                    "name it in one of them",
                )
    if spec.value is not None and (lost := [c for c in (*named, *computed) if c not in spec.value]):
        refuse(
            ErrorText(
                f"value= leaves {lost} out of the row, which ", Option("merge"), " or ", Option("derive"), " names"
            ),
            "drop them from one",
        )


def _check_group_orders(spec: Any, refuse: Refuse) -> None:
    """Check the options that groups or versions of cells exclude or require."""
    what = Option("groups") if spec.groups else Option("versions", "cell")
    given = "merge='first_row'" if spec.merge == "first_row" else "a function of merge="
    refuse_first_broken_rule(
        refuse,
        (
            bool(spec.groups) and spec.versions == "cell",
            ErrorText(Option("groups"), " and ", Option("versions", "cell"), " both say which order decides a cell"),
            "leave one of them out",
        ),
        (
            spec.merge == "first_row" or (isinstance(spec.merge, Merge) and spec.merge.function is not None),
            f"{given} with " + what,
            "it takes whole rows: leave " + what + " out",
        ),
        (
            spec.holds_back and spec.late != "advance",
            what + " in hold-back mode holds no order from one time to the next",
            ErrorText("use ", Option("late", "advance"), ", or leave ", Option("time"), " out"),
        ),
        (
            spec.versions == "cell" and not spec.keeps_order,
            ErrorText(Option("versions", "cell"), " without ", Option("order_by")),
            "name the order by which cells are compared",
        ),
    )


def _check_arrival_order(spec: Any, refuse: Refuse) -> None:
    """Refuse strategies whose result depends on arrival order under versions of cells."""
    deletes = spec.delete is not None or spec.where is not None
    merge = spec.merge if isinstance(spec.merge, Merge) else Merge()
    for name, strategy in (*merge.strategies.items(), ("default", merge.default or last_non_null())):
        if (why := find_arrival_dependence(strategy, deletes)) is not None:
            refuse(
                ErrorText(
                    f"{why} for {name!r} depends on arrival under ",
                    Option("versions", "cell"),
                    f"{' with deletes' * deletes}",
                ),
                ErrorText("use dd.last_non_null() or dd.last(), or ", Option("versions", "row")),
            )


def find_arrival_dependence(strategy: Strategy, deletes: bool) -> Strategy | None:
    """Return the strategy, or a field's strategy, if its result depends on arrival order under versions of cells."""
    if strategy.name == "fields":
        # A struct is one cell with one order, so its fields need strategies that ignore order.
        parts = [each for _, each in strategy.parts or ()] + [strategy.default or last_non_null()]
        return next((each for each in parts if deletes or each.name not in COMMUTING), None)
    free = ORDER_FREE if deletes else ORDER_FREE | WITHOUT_DELETES
    return None if strategy.name in free else strategy


def _check_expiry(spec: Any, refuse: Refuse) -> None:
    """Refuse an expiry without exactly one order column."""
    orders = [*spec.order_by, *(column for of, _ in spec.grouped for column in of)]
    refuse_first_broken_rule(
        refuse,
        (not isinstance(spec.expiry, Expiry), f"expiry= is {spec.expiry!r}", "give dd.Expiry(ttl=...)"),
        (
            spec.holds_back,
            ErrorText(
                "expiry= in hold-back mode, where a deleted key is nothing at all and ",
                Option("late"),
                " rules what is old",
            ),
            ErrorText("leave ", Option("time"), " out and name it in ", Option("order_by"), ", or leave expiry= out"),
        ),
        (
            len(spec.order_by) != 1 or bool(spec.groups),
            f"expiry= with {len(orders)} order columns {orders}",
            ErrorText("a time to live is told by one ", Option("order_by"), " column"),
        ),
    )
