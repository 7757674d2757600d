"""What stands behind a file, a folder or a pattern on a command line: ``in/*.csv:full:delimiter=;``.

Invariant: each option is known and has a value, or is a word that has none; nothing that looks like an option is a part
of the file's name or of another option's value.  An option begins with a colon and is a word of small letters before
``=``: a form of dates and a delimiter may have a colon, too.

>>> cut("in/*.csv:full:dates=%H:%M %d.%m.%Y:delimiter=:", WRITING, "files:")
('in/*.csv', {'full': [''], 'dates': ['%H:%M %d.%m.%Y'], 'delimiter': [':']})
>>> cut("in/*.csv:full:3", WRITING, "files:")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: files:in/*.csv:full:3: there is no option :full:3; write :full, or :delimiter=, :null=, ...
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ddflow.connectors.files.file_path import WRITING
from ddflow.errors import SpecError

FULL: Final = "full"
_BEGINS: Final = re.compile(rf":(?={FULL}(?:$|:)|[a-z_-]+=)")
RENAME: Final = "rename"
_SEVERAL: Final = ("null", "dates")


def cut(text: str, known: Sequence[str], kind: str = "") -> tuple[str, dict[str, list[str]]]:
    """Split an address into a file and its options, each with all its values.  Raises `SpecError`.  O(text).

    ``known``: the options that have a value.  ``kind``: the text before the address in messages.
    """
    file, *options = _BEGINS.split(text)
    given: dict[str, list[str]] = {}
    for name, equals, value in (each.partition("=") for each in options):
        if name not in (known if equals else (FULL,)):
            remedy = f"write :{FULL}, or {', '.join(f':{each}=' for each in known)}"
            raise SpecError(f"{kind}{text}", f"there is no option :{name}", remedy)
        given.setdefault(name, []).append(value)
    return file, given


def writing(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the options for the form of text, by the names of `FilePath`'s arguments."""
    given: dict[str, Any] = {
        name: tuple(values) if name in _SEVERAL else values[-1] for name, values in options.items() if name in WRITING
    }
    if RENAME in given:  # no new name has a "=" in it
        given[RENAME] = {old: new for old, _, new in (each.rpartition("=") for each in options[RENAME])}
    return given
