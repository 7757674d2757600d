"""Tables of a command line: ``orders=orders.csv:key=id:order-by=at``, files with what stands behind them.

Invariant: what stands behind a file is an option that is known, of the table or of how its text is written, and the
same name has more files. Nothing is opened here.

>>> told("orders=s3://logs/orders.parquet:key=id,region:order-by=at")
NamedTable(name='orders', file='s3://logs/orders.parquet', options={'key': ['id,region'], 'order-by': ['at']})
>>> options_of("z", grouped(["z=1.csv:key=id:delimiter=|", "z=2.csv:full:null=NA:null=-"])["z"])
{'key': ['id'], 'delimiter': ['|'], 'full': [''], 'null': ['NA', '-']}
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from ddflow.cli.reading import kind_told
from ddflow.connectors.files.file_path import FULL, RENAME, WRITING, cut, writing
from ddflow.errors import SpecError

if TYPE_CHECKING:
    import ddflow as dd
    from ddflow.connectors.files import FileOptions

OPTIONS: Final = ("key", "order-by", "tombstone", "diff")
_NAMED: Final = re.compile(r"([^\W\d]\w*)=(.+)", re.DOTALL)

Options = dict[str, list[str]]
"""Those behind the files of a table, each with its values."""


class NamedTable(NamedTuple):
    """A table of the command line."""

    name: str
    file: str
    options: Options


def told(text: str) -> NamedTable:
    """Parse a table of the command line.  Raises `typer.BadParameter`."""
    match = _NAMED.fullmatch(text)
    if match is None:
        more = " (a name has letters, digits and _ only, and begins with no digit)" if "=" in text else ""
        raise typer.BadParameter(f"{text}: write NAME=FILE[:key=COLUMNS], such as orders=orders.parquet:key=id{more}")
    try:
        return NamedTable(match[1], *cut(match[2], (*OPTIONS, *WRITING), f"{match[1]}="))
    except SpecError as error:
        raise typer.BadParameter(str(error)) from None


def grouped(texts: Sequence[str]) -> dict[str, list[NamedTable]]:
    """Group the tables by name, each with its files."""
    out: dict[str, list[NamedTable]] = {}
    for each in map(told, texts):
        out.setdefault(each.name, []).append(each)
    return out


def options_of(name: str, parts: Sequence[NamedTable]) -> Options:
    """Collect the options of a table.  Raises `typer.BadParameter`."""
    options: Options = {}
    for each in parts:
        options |= each.options
    if "key" in options and "diff" in options:
        raise typer.BadParameter(f"the table {name!r} has a key and diff=: rows with a key count once; leave one out")
    if "key" not in options and (others := sorted(options.keys() - {"diff", *WRITING})):
        other = others[0] if others[0] == FULL else f"{others[0]}="
        raise typer.BadParameter(f"the table {name!r} has {other} and no key: write {name}=FILE:key=COLUMNS")
    return options


def written(options: Options, of_all: "FileOptions") -> "FileOptions":
    """Return the options of a table's files: the common ones, and its own.  Raises `SpecError`."""
    said: dict[str, Any] = {{"null": "nulls"}.get(name, name): value for name, value in writing(options).items()}
    if RENAME in said:
        said[RENAME] = tuple(said[RENAME].items())
    if "format" in said:
        said["kind"] = kind_told(said.pop("format"))
    return replace(of_all, dialect=of_all.dialect._replace(**said))


def spec_of(options: Options) -> "dd.Upsert":
    """Build the spec by which the events of a table upsert."""
    import ddflow as dd
    from ddflow.cli.plan import names

    delete: Any = None
    if "tombstone" in options:
        column, equals, value = options["tombstone"][-1].partition("=")
        delete = dd.tombstone(column.strip(), value if equals else None)
    return dd.Upsert(key=names(options["key"][-1:]), order_by=names(options.get("order-by", [])[-1:]), delete=delete)
