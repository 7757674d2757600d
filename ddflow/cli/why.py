"""Explain the history of a key, or the input rows behind a row of an output: the verb ``ddflow why``.

`ddflow/engine/lineage/key_history.py` and `ddflow/engine/lineage/rows.py` do the work.

Guarantees: all information about rows comes from the state. To find the events, the verb resolves the log again.

>>> split_arguments("by_city", ["city=Bern", "log.csv"], ["orders"], ["by_city"])
('by_city', ['city=Bern'], ['log.csv'])
>>> split_arguments("7", ["log.csv"], ["orders"], ["by_city"])
(None, [], ['log.csv'])
>>> split_arguments("orders", ["7", "log.csv"], ["orders"], ["by_city"])
('orders', ['7'], ['log.csv'])
"""

import json
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddflow.cli.arguments import OF_TEXT, AsOf, Full, Input, Scope, State, Trust, VerbOptions, with_options
from ddflow.cli.say import say

if TYPE_CHECKING:
    from ddflow.engine.lineage.story import Origins, Story
    from ddflow.plan.plan import Plan

Between = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="T1 T2",
        show_default=False,
        help="Explain why rows of an output changed after T1, up to and including T2. The state must still keep both "
        "times.",
    ),
]
KeyOrName = Annotated[
    str,
    typer.Argument(
        metavar="KEY|NAME",
        show_default=False,
        help="A key: 7, or id=7, or id=7,region=EU. Or the name of an output, with COLUMN=VALUE after it.",
    ),
]


@with_options(only=OF_TEXT)
def why(
    state: State,
    key: KeyOrName,
    ask: VerbOptions,
    log: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE|LOG",
            show_default=False,
            help="After a NAME, values of the row; COLUMN= means null. Then the files of the log, or folders of files, "
            "whose events are resolved again.",
        ),
    ] = None,
    as_of: AsOf = None,
    between: Between = None,
    full: Full = None,
    scope: Scope = None,
    input: Input = None,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Explain why a row exists: the history of a key, or the input rows that produce a row of an output.

    For a key, the state shows its row, its versions with the winning order of each, its waiting events, and how far the
    source was read. If you pass a log, the verb also lists every event of the key with its verdict and the event that
    won, and every full file that lacks the key. The log is resolved again, with each file as one epoch. The times that
    the verb shows are those of this replay. In hold-back mode, these are the times of the events. In epoch mode with
    days or timestamps, they are the numbers of the files.

    For an output, the verb shows at most 100 rows that have the values, and the rows of each input that produce them,
    or with `--between` the changes between two times. With the log of an input (`--input`) it also shows the history of
    the keys of that input. If an input and an output have the same NAME, it means the input.

    Examples:

    * `ddflow why state/orders 7`

    * `ddflow why state/stock sku=7,store=Bern stock/ --json`

    * `ddflow why state/shop by_city city=Bern --as-of 2`

    * `ddflow why state/shop by_city city=Bern --between 1 2`
    """
    from ddflow.cli.input_files import build_file_options
    from ddflow.cli.log import FilesLog, find_input, open_log, parse_key, parse_values
    from ddflow.engine.snapshot import Snapshot

    with ExitStack() as stack:
        snapshot = stack.enter_context(Snapshot.open(state, trust=trust))  # type: ignore[arg-type]
        inputs, outputs = _find_collections(snapshot.flow, key)
        name, values, files = split_arguments(key, log or [], inputs, outputs)
        times = _parse_times(as_of, between, snapshot.flow.time_type)
        given = dict[str, FilesLog]()
        if name is None or name in inputs or files:
            bound = find_input(state, name if name in inputs else input, trust)
            if files:
                options = build_file_options(ask)
                source = stack.enter_context(closing(open_log(files, bound, options)))
                given[bound.name] = FilesLog(source, full, scope)
        told: Story | Origins
        if name is None or name in inputs:
            told = snapshot.why(bound.name, parse_key(",".join(values) or key, bound), given.get(bound.name), **times)
        else:
            asked = parse_values(values, outputs[name].schema, f"why of {name!r}")
            suggest_separate_arguments(told := snapshot.why(name, asked, given or None, **times), values)
    say(json.dumps(told.to_dict(), default=str) if as_json else str(told))


def _parse_times(as_of: str | None, between: tuple[str, str] | None, kind: Any) -> dict[str, Any]:
    """Parse the times of the options. Raises `SchemaMismatch` for a text that is not a time."""
    from ddflow.time import parse_time

    span = [parse_time(f"--between {each}", each, kind) for each in between or ()] or None
    return {"as_of": None if as_of is None else parse_time(f"--as-of {as_of}", as_of, kind), "between": span}


def suggest_separate_arguments(told: "Story | Origins", values: Sequence[str]) -> None:
    """Suggest separate arguments if no row was found and one argument looks like several values."""
    shown = getattr(told, "shown", None)
    if shown is not None and not shown.num_rows and any(has_second_value(each, shown.column_names) for each in values):
        say("pass each value of an output as a separate argument: city=Bern 'ward name=IPS'", err=True)


def has_second_value(value: str, names: Sequence[str]) -> bool:
    """Return True if a comma in the value is followed by another ``COLUMN=``.

    >>> has_second_value("city=Bern,ward=IPS", ["city", "ward"]), has_second_value("city=Bern, BE", ["city", "ward"])
    (True, False)
    """
    return any(part.partition("=")[0].strip() in names for part in value.split(",")[1:] if "=" in part)


def split_arguments(
    key: str, rest: Sequence[str], inputs: Collection[str], outputs: Collection[str]
) -> tuple[str | None, list[str], list[str]]:
    """Split the arguments into a name, the values after it, and the files. Raises `NotReadable`.

    The name is None if no values follow the first argument, because that argument is then a key.
    """
    from ddflow.columns.names import did_you_mean
    from ddflow.errors import NotReadable

    names, asked = [*outputs, *inputs], f"why of {key!r}"
    values = list(takewhile(lambda word: "=" in word and not Path(word).exists(), rest))
    if not values and key in inputs and rest and _is_key_argument(rest[0]):
        values = [rest[0]]
    if values and key not in names:
        raise NotReadable(asked, "there is no such input or output", did_you_mean(key, names, "names"))
    if not values and key in outputs and key not in inputs:
        remedy = "write values of the row after it, COLUMN=VALUE; or if it is a key, write its column before it, id=..."
        raise NotReadable(asked, f"{key!r} is an output, whose rows have no key", remedy)
    return key if values else None, values, list(rest[len(values) :])


def _find_collections(plan: "Plan", name: str) -> "tuple[dict[str, Any], dict[str, Any]]":
    """Return the inputs and outputs of a plan. Raises `NotReadable` for a side output, which a state does not hold."""
    from ddflow.engine.read.history import make_side_output_error

    if name in (sides := plan.side_outputs()):
        raise make_side_output_error(f"why of {name!r}", name, sides[name][0])
    return plan.inputs, plan.outputs


def _is_key_argument(word: str) -> bool:
    """Return True if a word after the name of an input is a key, and False if it is a file, a folder or a pattern."""
    return not Path(word).exists() and not PurePath(word).suffix[1:].isalpha() and not set("/*?") & set(word)
