"""The base of all errors: texts that hold data, and the words in which Python, the shell and Spark print them.

A text of an error is a `ErrorText`: pieces of text, and pieces that are data. A `Row` is renamed by whoever knows its
file; a `Fix` is something to type. `FixSyntax` writes them as Python; the shell and Spark have subclasses.

Guarantees: no text of an error holds a secret of an address or a setting (`mask_secrets`).
Limits: a setting with another name, or a password that is repeated alone, is not known to be one.

>>> error = DdflowError("rows for 'orders'", "null in " + Row(3), "choose " + Option("null_key", "drop"), column="id")
>>> str(set_error_row_names(error, "line {}".format, "orders.csv")), error.row, error.file, error.fixes
("rows for 'orders': null in line 3; choose null_key='drop'", 3, 'orders.csv', (Option(name='null_key', value='drop'),))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

_NAME: Final = (
    r"[\w.\-]*(?:password|passwd|passphrase|secret|token|credential|signature|jaas\.config"
    r"|(?:access|account|api|private|shared|service)[._\-]?key)[\w.\-]*|pwd"
)
_VALUE: Final = r"(?!\.\.\.)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&]+)"
_SPACED: Final = r"[^\s:/@]*:(?!\s|\d{1,5}(?:[/?#,;:)\s'\"]|$))[^\n]*@"
"""A password that may have spaces in it, because no port begins there."""
_SCHEME: Final = r"\b(?!abfss?:|wasbs?:)([a-z][a-z0-9+.\-]*:"
_USER: Final = re.compile(rf"(?i){_SCHEME}/+)(?:{_SPACED}|\S*@)|{_SCHEME})[^\s/]\S*@")
_SETTING: Final = re.compile(rf"(?i)(?<![\w.\-])((['\"]?)(?:{_NAME})\2\s*=\s*|(['\"])(?:{_NAME})\3\s*:\s*){_VALUE}")
_PARAMETER: Final = re.compile(r"(?i)(?<=[?&;])((?:[\w.\-]*(?:key|sig|auth|pass|pw|cred)[\w.\-]*|code)=)[^&\s'\"]*")
_PASSWORD: Final = re.compile(r"(?s)[a-zA-Z][\w+.\-]*://[^:/@]*:(.*)@")
_HINT: Final = re.compile(r"[=@]|['\"]\s*:")
_LEAST: Final = 4
"""Characters of a value that is left out wherever it is repeated."""


def mask_secrets(text: str, known: Iterable[Any] = ()) -> str:
    """Return the text with ``...`` for each secret, and for each of the ``known`` values of settings.  O(text).

    Secrets are found by their form: user and password in front of an ``@``, parameters of an address, and settings
    whose name is that of a secret, as libpq, librdkafka, Spark, JSON and Python write them.  A host, a path or a table
    is never taken away.

    >>> mask_secrets("connect to postgres://me:p@ss/w:rd#1@db:5432/shop#t, with sslmode=require")
    'connect to postgres://...@db:5432/shop#t, with sslmode=require'
    >>> mask_secrets("host=db password='a b' user=me"), mask_secrets("{'sasl.password': 'x y', 'acks': 'all'}")
    ('host=db password=... user=me', "{'sasl.password': ..., 'acks': 'all'}")
    >>> mask_secrets("https://lake/t?X-Amz-Signature=00ff&versionId=7 and s3://b/t?key=1")
    'https://lake/t?X-Amz-Signature=...&versionId=7 and s3://b/t?key=...'
    >>> mask_secrets("key=['id'], from mail@host")
    "key=['id'], from mail@host"
    """
    for value in sorted(map(str, known), key=len, reverse=True):
        found = _PASSWORD.match(value)
        for secret in (value, found[1] if found else ""):
            text = text.replace(secret, "...") if len(secret) >= _LEAST else text
    if not _HINT.search(text):
        return text
    text = _PARAMETER.sub(r"\1...", _SETTING.sub(r"\1...", text))
    return _USER.sub(lambda found: f"{found[1] or found[2]}...@", text)


def shorten(text: str, most: int = 300) -> str:
    """Return a text that may be of any length, or only its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


class FixSyntax:
    """Write the data of an error as Python is typed; the shell and Spark have words of their own."""

    def format_option(self, name: str, value: Any = ...) -> str:
        """Return an option of a call."""
        return f"{name}={'' if value is ... else repr(value)}"

    def format_types(self, types: Mapping[str, str]) -> str:
        """Return the declaration of some columns."""
        return str(dict(types))

    def format_input_types(self, input: str) -> str:
        """Return how types are said to be of one input."""
        return f"{{{input!r}: {{column: type}}}}"

    def format_evolve_call(self, fix: EvolveFix) -> str:
        """Return the call that rewrites a state."""
        given = [str({fix.input: dict(fix.types)} if fix.input else dict(fix.types))] if fix.types else []
        given += [f"{name}={[*names]}" for name, names in fix.drop_options.items() if names]
        return f"dd.evolve({', '.join(['STATE' if fix.state is None else repr(fix.state), *given])})"

    def format_migration(self, fix: EvolveFix) -> str:
        """Return how a log gives a state that has the types from its beginning."""
        return f"{self.format_types(fix.types)}, in a new state"

    def format_engine_evolve_call(self, fix: EvolveFix) -> str:
        """Return the call by which an open engine takes types that it can read, before another way; or ""."""
        return f"engine.evolve({ {fix.input: dict(fix.types)} if fix.input else dict(fix.types) }), or "

    def format_verb(self, name: str) -> str:
        """Return a verb without its arguments."""
        return f"dd.{name}"

    def format_file(self, path: str, options: Mapping[str, Any]) -> str:
        """Return a file with options of how it is written."""
        return f"dd.FilePath({', '.join([repr(path), *(f'{name}={value!r}' for name, value in options.items())])})"

    def format_tombstone(self, column: str, value: Any = None) -> str:
        """Return a rule that says which events delete."""
        return f"dd.tombstone({column!r}{'' if value is None else f', {value!r}'})"


PYTHON: Final = FixSyntax()


class ErrorTextPart:
    """A piece of a message that is data."""

    def text(self, words: FixSyntax) -> str:
        """Return the piece in some words."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text(PYTHON)

    def __add__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(self, other)

    def __radd__(self, other: str) -> ErrorText:
        return ErrorText(other, self)


@dataclass(frozen=True)
class Row(ErrorTextPart):
    """A row of a call, counted from 0, or by the name that its file's reader gives it.

    ``before``, ``after``: what is left out with a row that has no name, which is "".  ``inner``: whether an operator
    counts so, whose rows are not those of the call.

    >>> str(Row(3)), Row(3, ", first in ", name="line 5").text(PYTHON), Row(0, after=": ", name="").text(PYTHON)
    ('row 3, counted from 0', ', first in line 5', '')
    """

    number: int
    before: str = ""
    after: str = ""
    inner: bool = False
    name: str | None = None

    def text(self, words: FixSyntax) -> str:
        """Return the row as one reads it."""
        name = f"row {self.number}{'' if self.inner else ', counted from 0'}" if self.name is None else self.name
        return f"{self.before}{name}{self.after}" if name else ""


def format_location(before: str, place: str | Row, after: str = "") -> str | ErrorTextPart:
    """Return a place with text around it, which is left out with the place where that is a row without a name.

    >>> str(format_location("7 rows, first in ", Row(3))), format_location("", "offset 9", ": no JSON")
    ('7 rows, first in row 3, counted from 0', 'offset 9: no JSON')
    """
    if isinstance(place, Row):
        return replace(place, before=before + place.before, after=place.after + after)
    return ErrorText(before, place, after)


class Fix(ErrorTextPart):
    """Something to type that mends an error."""


@dataclass(frozen=True)
class Option(Fix):
    """An option of the call.

    >>> str(Option("late", "drop")), str(Option("password", "x"))
    ("late='drop'", "password='...'")
    """

    name: str
    value: Any = ...

    def __post_init__(self) -> None:
        if self.value is not ... and mask_secrets(shown := f"{self.name}={self.value!r}") != shown:
            object.__setattr__(self, "value", "...")

    def text(self, words: FixSyntax) -> str:
        """Return the option as it is typed."""
        return words.format_option(self.name, self.value)


@dataclass(frozen=True)
class DeclareFix(Fix):
    """The declaration of some columns, by name."""

    types: Mapping[str, str]

    def text(self, words: FixSyntax) -> str:
        """Return the types as they are typed."""
        return words.format_types(self.types)


@dataclass(frozen=True)
class InputTypesFix(Fix):
    """How types are said to be of one input of several."""

    input: str

    def text(self, words: FixSyntax) -> str:
        """Return how they are typed."""
        return words.format_input_types(self.input)


@dataclass(frozen=True)
class EvolveFix(Fix):
    """A rewrite of a state: columns of an input get wider types, outputs and inputs are dropped.

    ``moves``: whether no rewrite gives the types, so that a new state must.

    >>> str(EvolveFix({"c": "double"}, "orders")), str(EvolveFix(state="s", drop_outputs=["old"]))
    ("dd.evolve(STATE, {'orders': {'c': 'double'}})", "dd.evolve('s', drop_outputs=['old'])")
    """

    types: Mapping[str, str] = field(default_factory=dict)
    input: str = ""
    state: str | None = None
    drop_outputs: Sequence[str] = ()
    drop_inputs: Sequence[str] = ()
    moves: bool = False

    @property
    def drop_options(self) -> dict[str, Sequence[str]]:
        """What is dropped, by option."""
        return {"drop_outputs": self.drop_outputs, "drop_inputs": self.drop_inputs}

    def text(self, words: FixSyntax) -> str:
        """Return the call as it is typed."""
        return words.format_migration(self) if self.moves else words.format_evolve_call(self)


@dataclass(frozen=True)
class WidenFix(EvolveFix):
    """The same for a column that may have become wider at its source; it stands at the end of a remedy.

    ``declared``: whether the remedy names the type already.  ``reads``: whether an open engine takes it, too.
    ``new``: whether the state has nothing in it yet.  ``fixed``: the columns that no state changes.

    >>> str(WidenFix({"c": "double"}, declared=True))
    "; in a state the column becomes that by dd.evolve(STATE, {'c': 'double'})"
    >>> str(WidenFix({"c": "double"}, new=True)), str(WidenFix({"c": "double"}, fixed=["c"]))
    ("; declare the type that fits: {'c': 'double'}", '; a state cannot change it to that: make a new one')
    """

    declared: bool = False
    reads: bool = False
    new: bool = False
    fixed: Collection[str] = ()

    def text(self, words: FixSyntax) -> str:
        """Return what to do, with what stands between it and the text before it."""
        if self.new:
            return "" if self.declared else f"; declare the type that fits: {words.format_types(self.types)}"
        if not self.types or not self.types.keys().isdisjoint(self.fixed):
            return "; a state cannot change it to that: make a new one"
        why = (
            "in a state the column becomes that by " if self.declared else "if the column became wider at its source: "
        )
        return f"; {why}{words.format_engine_evolve_call(self) if self.reads else ''}{words.format_evolve_call(self)}"


@dataclass(frozen=True)
class CommandFix(Fix):
    """A verb, such as ``rollback``, without its arguments."""

    name: str

    def text(self, words: FixSyntax) -> str:
        """Return the verb as it is called."""
        return words.format_verb(self.name)


@dataclass(frozen=True)
class FileFix(Fix):
    """A file with options of how it is written."""

    path: str
    options: Mapping[str, Any]

    def text(self, words: FixSyntax) -> str:
        """Return the file as it is typed."""
        return words.format_file(self.path, self.options)


@dataclass(frozen=True)
class TombstoneFix(Fix):
    """A rule that says which events delete."""

    column: str
    value: Any = None

    def text(self, words: FixSyntax) -> str:
        """Return the rule as it is typed."""
        return words.format_tombstone(self.column, self.value)


class ErrorText(str):
    """A text that keeps its parts that are data.  As a string it has the words of Python.

    >>> ErrorText("null in ", Row(3), "; choose ", Option("late", "drop")) + "!"
    "null in row 3, counted from 0; choose late='drop'!"
    """

    parts: tuple[str | ErrorTextPart, ...]

    def __new__(cls, *given: str | ErrorTextPart) -> ErrorText:
        """Join texts and parts."""
        parts = [part for each in given for part in (each.parts if isinstance(each, ErrorText) else (each,))]
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = tuple(parts)
        return made

    @classmethod
    def join_texts(cls, between: str, texts: Iterable[str | ErrorTextPart]) -> ErrorText:
        """Join texts as `str.join` does."""
        return cls(*[part for each in texts for part in (between, each)][1:])

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.parts

    def __add__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(self, other)

    def __radd__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(other, self)


def format_error_text(text: str, words: FixSyntax) -> str:
    """Return a text in some words, without secrets; one without parts stays as it is."""
    parts = text.parts if isinstance(text, ErrorText) else (text,)
    return mask_secrets("".join(each if isinstance(each, str) else each.text(words) for each in parts))


def _mask_phrase(given: str | ErrorTextPart) -> ErrorText:
    return ErrorText(*(mask_secrets(each) if isinstance(each, str) else each for each in ErrorText(given).parts))


class DdflowError(Exception):
    """The base class of all errors of ddflow.  The message is ``asked: found; fix``.

    Parameters
    ----------
    asked : str
        What was asked for.
    found : str
        What was found.
    fix : str
        What to do about it.  Each of the three may be a `ErrorText` with data in it.
    input : str, optional
        The input whose rows it is about.
    file : str, optional
        Their file.
    row : int, optional
        The first row that it is about, counted from 0; by default that of a `Row` in one of the texts.
    offset : str, optional
        The place of a message in its log, as its format writes it.
    column : str, optional
        The column that it is about.
    """

    words: FixSyntax = PYTHON
    """How `str` writes it."""
    cells: str = ""
    """The cells of the row that it is about."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__module__ = "ddflow.errors"

    def __init__(
        self,
        asked: str | ErrorTextPart,
        found: str | ErrorTextPart,
        fix: str | ErrorTextPart,
        *,
        input: str = "",
        file: str = "",
        row: int | None = None,
        offset: str = "",
        column: str = "",
    ) -> None:
        super().__init__(asked, found, fix)
        self.args = _mask_phrase(asked), _mask_phrase(found), _mask_phrase(fix)  # an OSError drops the third
        rows = [each.number for text in self.args for each in text.parts if isinstance(each, Row) and not each.inner]
        self.input, self.file, self.offset, self.column = input, file, offset, column
        self.row = rows[0] if row is None and rows else row

    @property
    def asked(self) -> ErrorText:
        """What was asked for."""
        return self.args[0]  # type: ignore[no-any-return]

    @property
    def found(self) -> ErrorText:
        """What was found."""
        return self.args[1]  # type: ignore[no-any-return]

    @property
    def fix(self) -> ErrorText:
        """What to do about it."""
        return self.args[2]  # type: ignore[no-any-return]

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """What to type, as data, in the order of the text."""
        return tuple(each for each in self.fix.parts if isinstance(each, Fix))

    @property
    def message(self) -> ErrorText:
        """The three together."""
        return ErrorText(self.asked, ": ", self.found, "; ", self.fix)

    def __str__(self) -> str:
        return format_error_text(self.message, self.words)


DdflowError.__module__ = "ddflow.errors"
T = TypeVar("T", bound=DdflowError)


def replace_error_texts(
    error: T,
    asked: str | ErrorTextPart | None = None,
    found: str | ErrorTextPart | None = None,
    fix: str | ErrorTextPart | None = None,
) -> T:
    """Give an error other texts, and return it."""
    new = (asked, found, fix)
    error.args = tuple(old if text is None else _mask_phrase(text) for old, text in zip(error.args, new, strict=True))
    return error


def replace_error_parts(error: T, kind: Any, change: Callable[[Any], str | ErrorTextPart]) -> T:
    """Put other parts in place of those of a kind, and return the error."""
    error.args = tuple(
        ErrorText(*(change(each) if isinstance(each, kind) else each for each in text.parts)) for text in error.args
    )
    return error


def set_error_input(error: T, input: str, several: bool) -> T:
    """Say which input an error is about.  ``several``: whether its plan has others, so that fixes name it."""
    error.input = error.input or input
    return (
        replace_error_parts(error, EvolveFix, lambda fix: replace(fix, input=fix.input or input)) if several else error
    )


def set_error_state(error: T, state: str | None, fixed: Collection[str] = ()) -> T:
    """Say which state an error is about: None for a new one.  ``fixed``: the columns that no state changes."""

    def locate(fix: EvolveFix) -> Fix:
        if isinstance(fix, WidenFix):
            return replace(fix, state=state, new=state is None, fixed=fixed)
        if state is None and fix.types:
            return DeclareFix(fix.types)
        return replace(fix, state=state, moves=fix.moves or not fix.types.keys().isdisjoint(fixed))

    return replace_error_parts(error, EvolveFix, locate)


def set_error_row_names(error: T, name: Callable[[int], str], file: str = "") -> T:
    """Call the rows of an error as their file's reader calls them."""
    error.file = error.file or file
    return replace_error_parts(error, Row, lambda row: replace(row, name="" if row.inner else name(row.number)))
