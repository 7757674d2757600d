"""What the library says, in the words of the shell.

Invariant: the library names options and calls as they are in Python, because it does not know who asks.  Here alone
they become those of the command line, where the verb has them: an option of the verb, a declared type where the verb
has ``--types``, how a file is written, `ddflow.tombstone`, and `ddflow.evolve`, `ddflow.migrate`, `ddflow.rollback` and
`ddflow.gc`.  What stands in quotes is somebody's text, and stays.

>>> said = "it is 'null_key=x'; choose null_key='drop', declare {'n': 'double'}, or dd.evolve('s', {'n': 'int64'})"
>>> in_shell(said, {"null_key": "--null-key", "types": "--types"})
"it is 'null_key=x'; choose --null-key drop, declare --types n=double, or ddflow evolve s --types n=int64"
>>> in_shell("say of which: {'orders': {column: type}}", {"input": "--input"})
'say of which: --input orders'
>>> in_shell("'dd.gc' is a name; go back with dd.rollback", {})
"'dd.gc' is a name; go back with ddflow rollback"
"""

import re
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from ddflow.errors import DdflowError

_TEXT: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PAIR: Final = re.compile(rf"({_TEXT}): ({_TEXT})")
_TYPES: Final = rf"\{{(?:{_TEXT}): (?:{_TEXT})(?:, (?:{_TEXT}): (?:{_TEXT}))*\}}"
_EVOLVE: Final = re.compile(rf"dd\.evolve\((STATE|{_TEXT}), (?:({_TYPES})|\{{({_TEXT}): ({_TYPES})\}})\)")
_NAMES: Final = rf"drop_(output|input)s=\[((?:{_TEXT})(?:, (?:{_TEXT}))*)\]"
_DROP: Final = re.compile(rf"dd\.evolve\((STATE|{_TEXT})((?:, {_NAMES})+)\)")
_DECLARED: Final = re.compile(rf"(\bdeclar(?:e|ing)\b[^{{}};]*?)({_TYPES})")
_OF_WHICH: Final = re.compile(rf"\{{({_TEXT}): \{{column: type\}}\}}")
_OPTION: Final = re.compile(rf"(\w+)=((?:{_TEXT})|\[[^\[\]]*\]|\{{[^{{}}]*\}})")
_WRITTEN: Final = re.compile(rf"dd\.FilePath\((?:{_TEXT})((?:, {_OPTION.pattern})+)\)")
_VALUE: Final = rf"{_TEXT}|\[[^\[\]]*\]|True|False|None|-?\d[\w.]*"
_TOMBSTONE: Final = re.compile(rf"dd\.tombstone\(({_TEXT})(?:, ({_TEXT}))?\)")
OTHERWISE: Final = {"group": "groups"}
"""Options that are called otherwise in Python."""
_CALLED: Final = re.compile(rf"(?<!\w)(?:{_TEXT})|(?<![\w.])dd\.(rollback|migrate|gc)\b(?!\()")
VERB: Final[ContextVar[Any]] = ContextVar("VERB", default=None)
"""The verb that runs, as Typer has it."""


def worded(error: DdflowError | str) -> str:
    """An error, or a note, as the verb that runs says it.  O(text)."""
    given = VERB.get()
    options = () if given is None else [each for each in given.params if each.opts and each.opts[0].startswith("-")]
    text = str(error)
    if given is not None and given.name == "sql":  # whose options of a table stand behind its file
        text = _TOMBSTONE.sub(lambda found: f":tombstone={_deleting(found)}", text)
        text = _WRITTEN.sub(lambda found: _kept(f"NAME=FILE{_behind(found[1])}"), text)
    return in_shell(text, {OTHERWISE.get(each.name, each.name.rstrip("_")): each.opts[0] for each in options})


def in_shell(text: str, options: Mapping[str, str]) -> str:
    """A text of the library.  ``options``: as the shell calls them, by their names in Python.  O(text)."""
    text = _DROP.sub(_dropping, _EVOLVE.sub(_evolving, text))
    text = _CALLED.sub(lambda found: f"ddflow {found[1]}" if found[1] else found[0], text)
    if {"delimiter", "from"} & options.keys():
        text = _WRITTEN.sub(lambda found: _writing(found[1], options), text)
    if "tombstone" in options:
        text = _TOMBSTONE.sub(lambda found: f"{options['tombstone']} {_quoted(_deleting(found))}", text)
    if "input" in options:
        text = _OF_WHICH.sub(lambda found: f"{options['input']} {_quoted(found[1][1:-1])}", text)
    if "types" in options:
        text = _DECLARED.sub(lambda found: found[1] + typed(_pairs(found[2])), text)
    if not options:
        return text
    names = "|".join(map(re.escape, sorted(options, key=len, reverse=True)))
    option = rf"(?<![\w.(\"'-])(?P<name>{names})=(?P<value>{_VALUE})?(?= ?)"
    quoted = rf"(?<!\w)(?:{_TEXT})"

    def said(found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        value = _plain(found["value"])
        return f"{options[found['name']]} {value}" if value else options[found["name"]]

    return re.sub(f"{option}|{quoted}", said, text)


def typed(types: Mapping[str, str]) -> str:
    """What to type to declare types.

    >>> typed({"total": "decimal(12,2)", "city": "string"})
    "--types 'total=decimal(12,2),city=string'"
    """
    return f"--types {shlex.quote(','.join(f'{name}={kind}' for name, kind in types.items()))}"


def _writing(given: str, options: Mapping[str, str]) -> str:
    """What to type to say how text is written: options, or of a source the end of its address."""
    if "delimiter" in options:
        return " ".join(f"{options[name]} {_quoted(value)}" for name, value in _said(given))
    return f"{options['from']} {_quoted(f'INPUT=files:PATTERN{_behind(given)}')}"


def _behind(given: str) -> str:
    """The same, behind a file."""
    return "".join(f":{name}={value}" for name, value in _said(given))


def _said(given: str) -> list[tuple[str, str]]:
    """The names of some options of Python with each of their values."""
    out = list[tuple[str, str]]()
    for name, value in _OPTION.findall(given):
        pairs = _pairs(value) if value.startswith("{") else {}
        out += [(name, f"{old}={new}") for old, new in pairs.items()]
        out += [(name, each[1:-1]) for each in re.findall(_TEXT, value) if not pairs]
    return out


def _deleting(found: re.Match[str]) -> str:
    """What deletes, as it is typed."""
    return "=".join(each[1:-1] for each in found.groups() if each)


def _evolving(found: re.Match[str]) -> str:
    state, types, input, of_input = found.groups()
    of = "" if input is None else f" --input {shlex.quote(input[1:-1])}"
    return f"ddflow evolve {_where(state)}{of} {typed(_pairs(types or of_input))}"


def _dropping(found: re.Match[str]) -> str:
    options = (
        f" --drop-{kind} {shlex.quote(each[1:-1])}"
        for kind, names in re.findall(_NAMES, found[2])
        for each in re.findall(_TEXT, names)
    )
    return f"ddflow evolve {_where(found[1])}{''.join(options)}"


def _where(state: str) -> str:
    return state if state == "STATE" else shlex.quote(state[1:-1])


def _pairs(types: str) -> dict[str, str]:
    return {name[1:-1]: kind[1:-1] for name, kind in _PAIR.findall(types)}


def _plain(value: str | None) -> str:
    """A value of Python as it is typed; "" of an option that has none there."""
    if value is None or value in ("True", "False", "None"):
        return ""
    if value[0] == "[":
        return shlex.quote(",".join(each[1:-1] for each in re.findall(_TEXT, value)))
    return _quoted(value[1:-1]) if value[0] in "'\"" else value


def _kept(value: str) -> str:
    """A value as it is typed, always in quotes, so that nothing of it is taken for an option of Python's."""
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value else quoted


def _quoted(value: str) -> str:
    """A value as it is typed, in quotes where it would be taken for the sentence's own comma."""
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value and value.endswith(",") else quoted
