"""Check and suggest column names: as options give them, and for errors about an unknown name.

An option takes one name as text or several in order. Sets are refused, because they have no order and results would
differ between processes. `parse_column_names` checks only the form of an option; `check_columns_exist` also needs the
known names.

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
"""The column that holds a row's multiplicity, beside the row's own columns."""
RESERVED = (TIME, DIFF)
_QUOTED: Final = r'"(?:[^"]|"")+"'


def quote_name(name: str) -> str:
    """Quote any name for SQL.

    >>> quote_name('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def split_qualified_name(text: str) -> tuple[str | None, str]:
    """Split the name of a table into its schema, None without one, and the name.

    The last dot outside quotes separates them. Names with dots may be quoted as in SQL.

    >>> split_qualified_name("orders"), split_qualified_name("my.shop.orders"), split_qualified_name('shop."a.""b"')
    ((None, 'orders'), ('my.shop', 'orders'), ('shop', 'a."b'))
    """
    found = re.fullmatch(rf'(?:({_QUOTED}|[^"]+)\.)?({_QUOTED}|[^."]*)', text)
    schema, name = text.rpartition(".")[::2] if found is None else found.groups()
    return _unquote_name(schema) if schema else None, _unquote_name(name)


def _unquote_name(name: str) -> str:
    return name[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, name) else name


def parse_column_names(given: Any, asked: str, option: str) -> tuple[str, ...]:
    """Parse the columns of an option: one name as text, or several in order. Raises `SpecError`."""
    unordered = isinstance(given, Mapping | Set | bytes) or not isinstance(given, Iterable)
    names = (given,) if isinstance(given, str) or unordered else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            found = Option(option) + f" {'is' if unordered else 'holds'} {name!r:.200}"
            raise SpecError(asked, found, "give column names as text: one, or a list of them")
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
            raise SpecError(what, f"a column is called {name!r:.200}", "give names as text")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(what, f"the columns {twice} occur more than once", "give every column its own name")
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise SpecError(
            what, f"the columns {taken} are those that updates carry themselves", "rename them in the input"
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
    """Refuse columns that both sides of a join show. ``there``: all columns of the right side. Raises `SpecError`."""
    if both := [name for name in right if name in left]:
        found = f"both sides have the columns {both}, which are not joined"
        keeps = [name for name in there if name not in both]
        raise SpecError(asked, found, f"name the columns of one side that it shows: right.project({keeps})")


def find_nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Find the nearest known name; None if none is near.

    >>> find_nearest_name("weight", ["id", "weight_kg"]), find_nearest_name("note", ["id", "weight_kg"])
    ('weight_kg', None)
    """
    known = list(dict.fromkeys(known))
    folded = {each.casefold(): each for each in reversed(known)}
    found = get_close_matches(str(name), known, 1) or [
        folded[each] for each in get_close_matches(str(name).casefold(), folded, 1)
    ]
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Write the remedy for an unknown name: the nearest name, and all known ones.

    >>> did_you_mean("Za\\u0308hler", ["Z\\u00e4hler"])
    "its letters are composed otherwise in 'Zähler' (unicodedata.normalize); copy the name from: ['Zähler']"
    """
    known = list(dict.fromkeys(known))
    composed = normalize("NFC", str(name))
    same = next((each for each in known if each != name and normalize("NFC", str(each)) == composed), None)
    if same is not None:
        return f"its letters are composed otherwise in {same!r} (unicodedata.normalize); copy the name from: {known}"
    found = find_nearest_name(name, known)
    return (f"did you mean {found!r}? " if found is not None else "") + f"there are {known}"
