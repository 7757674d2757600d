"""Check the column names in options, and suggest names in errors about an unknown name.

An option takes one name as text, or a sequence of names. Sets are refused: a set has no order, so results would differ
between processes. `parse_column_names` checks only the form of an option. `check_columns_exist` compares the names with
the known names.

>>> parse_column_names("id", "an upsert spec", "key"), parse_column_names(["id", "at"], "an upsert spec", "key")
(('id',), ('id', 'at'))
>>> check_column_name(["id"], "an upsert spec", "seq")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: an upsert spec: seq= is ['id']; name one column, as text
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any, Final
from unicodedata import normalize

from ddflow.errors import Option, SpecError

TIME: Final = "_time"
DIFF: Final = "_diff"
DELETED: Final = "_deleted"
TIMES: Final = "_times"
"""The name of the column that holds the multiplicity of a row."""
RESERVED = (TIME, DIFF)
_QUOTED: Final = r'"(?:[^"]|"")+"'


def quote_name(name: str) -> str:
    """Quote any name for SQL.

    >>> quote_name('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def split_qualified_name(text: str) -> tuple[str | None, str]:
    """Split the name of a table at its last dot, into the name of a database schema and the table's own name.

    The schema is None if the text has no dot outside quotes. The last dot outside quotes separates the two names. Names
    with dots may be quoted as in SQL.

    >>> split_qualified_name("orders"), split_qualified_name("my.shop.orders"), split_qualified_name('shop."a.""b"')
    ((None, 'orders'), ('my.shop', 'orders'), ('shop', 'a."b'))
    """
    found = re.fullmatch(rf'(?:({_QUOTED}|[^"]+)\.)?({_QUOTED}|[^."]*)', text)
    schema, name = text.rpartition(".")[::2] if found is None else found.groups()
    return _unquote_name(schema) if schema else None, _unquote_name(name)


def _unquote_name(name: str) -> str:
    return name[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, name) else name


def parse_column_names(given: Any, asked: str, option: str) -> tuple[str, ...]:
    """Parse the columns of an option: one name as text, or a sequence of names. Raises `SpecError`."""
    unordered = isinstance(given, Mapping | Set | bytes) or not isinstance(given, Iterable)
    names = (given,) if isinstance(given, str) or unordered else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            found = Option(option) + f" {'is' if unordered else 'holds'} {name!r:.200}"
            raise SpecError(asked, found, "pass column names as text: one, or a list of them")
    return names


def check_column_name(given: Any, asked: str, option: str) -> str:
    """Check that an option names one column. Raises `SpecError`."""
    if not isinstance(given, str) or not given:
        raise SpecError(asked, Option(option) + f" is {given!r:.200}", "name one column, as text")
    return given


def check_column_names(names: Sequence[str], what: str) -> None:
    """Refuse duplicate names, the reserved names of updates, and names that are not text. Raises `SpecError`."""
    for name in names:
        if not isinstance(name, str):
            raise SpecError(what, f"a column has the name {name!r:.200}", "use text for names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(what, f"the columns {twice} occur more than once", "use each name for one column only")
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise SpecError(
            what, f"the columns {taken} have names that ddflow reserves for updates", "rename them in the input"
        )


def check_columns_exist(names: Iterable[str], known: Sequence[str], asked: str, option: str = "") -> None:
    """Refuse unknown columns. ``option``: the option with the names. Raises `SpecError`."""
    for name in names:
        if name not in known:
            found = (
                Option(option) + f" holds {name!r}: there is no such column"
                if option
                else f"there is no column {name!r}"
            )
            raise SpecError(asked, found, did_you_mean(name, known))


def check_no_shared_columns(left: Sequence[str], right: Sequence[str], there: Sequence[str], asked: str) -> None:
    """Refuse columns that both sides of a join have. ``there``: all columns of the right side. Raises `SpecError`."""
    if both := [name for name in right if name in left]:
        found = f"both sides have the columns {both}, which are not joined"
        keeps = [name for name in there if name not in both]
        raise SpecError(asked, found, f"choose the columns that one side shows: right.project({keeps})")


def find_nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that is most similar to ``name``. Return None if no name is similar.

    >>> find_nearest_name("weight", ["id", "weight_kg"]), find_nearest_name("note", ["id", "weight_kg"])
    ('weight_kg', None)
    """
    known = list(dict.fromkeys(known))
    folded = {each.casefold(): each for each in reversed(known)}
    found = get_close_matches(str(name), known, 1) or [
        folded[each] for each in get_close_matches(str(name).casefold(), folded, 1)
    ]
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], kind: str = "columns") -> str:
    """Write the remedy for an unknown name, which lists the most similar name and all known names.

    ``kind``: a plural noun for the things named.

    >>> did_you_mean("Za\\u0308hler", ["Z\\u00e4hler"])
    "'Zähler' has these letters in another Unicode form (unicodedata.normalize); copy it from: ['Zähler']"
    """
    known = list(dict.fromkeys(known))
    composed = normalize("NFC", str(name))
    same = next((each for each in known if each != name and normalize("NFC", str(each)) == composed), None)
    if same is not None:
        return f"{same!r} has these letters in another Unicode form (unicodedata.normalize); copy it from: {known}"
    found = find_nearest_name(name, known)
    return (f"did you mean {found!r}? " if found is not None else "") + f"the {kind} are {known}"
