"""Define the base class of all errors, and texts that contain data such as row numbers.

The text of an error is an `ErrorText`: plain text mixed with parts that are data. A `Row` is a row number; the reader
of a file can replace it by a line number of the file. A `Fix` is an option or a call that the user can type.
`FixSyntax` writes fixes as Python code; its subclasses write them for the shell and for Spark.

Guarantees: the text of an error holds no secret from an address or a setting (`mask_secrets`).
Limits: two kinds of secrets are not recognized: the value of a setting with an unknown name, and a password that is not
written in a setting or an address.

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
"""A user and a password that may contain spaces. The pattern does not match if a port number follows the colon."""
_SCHEME: Final = r"\b(?!abfss?:|wasbs?:)([a-z][a-z0-9+.\-]*:"
_USER: Final = re.compile(rf"(?i){_SCHEME}/+)(?:{_SPACED}|\S*@)|{_SCHEME})[^\s/]\S*@")
_SETTING: Final = re.compile(rf"(?i)(?<![\w.\-])((['\"]?)(?:{_NAME})\2\s*=\s*|(['\"])(?:{_NAME})\3\s*:\s*){_VALUE}")
_PARAMETER: Final = re.compile(r"(?i)(?<=[?&;])((?:[\w.\-]*(?:key|sig|auth|pass|pw|cred)[\w.\-]*|code)=)[^&\s'\"]*")
_PASSWORD: Final = re.compile(r"(?s)[a-zA-Z][\w+.\-]*://[^:/@]*:(.*)@")
_HINT: Final = re.compile(r"[=@]|['\"]\s*:")
_LEAST: Final = 4
"""The minimal number of characters of a known secret. Shorter values are not masked."""


def mask_secrets(text: str, known: Iterable[Any] = ()) -> str:
    """Replace each recognized secret, and each value in ``known``, by ``...``. O(text).

    Recognized secrets are: user and password before an ``@``, parameters of an address, and settings with names such as
    ``password``. Settings may have the syntax of libpq, librdkafka, Spark, JSON or Python. Hosts, paths and tables are
    not masked.

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
    """Return a text of at most ``most`` characters unchanged. Cut the middle out of a longer text."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


class FixSyntax:
    """Write the data of an error as Python code; subclasses write it for the shell and for Spark."""

    def format_option(self, name: str, value: Any = ...) -> str:
        """Format an option of a call."""
        return f"{name}={'' if value is ... else repr(value)}"

    def format_types(self, types: Mapping[str, str]) -> str:
        """Format the declared types of some columns."""
        return str(dict(types))

    def format_input_types(self, input: str) -> str:
        """Format the advice to declare types for one input."""
        return f"{{{input!r}: {{column: type}}}}"

    def format_evolve_call(self, fix: EvolveFix) -> str:
        """Format the call that rewrites a state."""
        given = [str({fix.input: dict(fix.types)} if fix.input else dict(fix.types))] if fix.types else []
        given += [f"{name}={[*names]}" for name, names in fix.drop_options.items() if names]
        return f"dd.evolve({', '.join(['STATE' if fix.state is None else repr(fix.state), *given])})"

    def format_migration(self, fix: EvolveFix) -> str:
        """Format the advice to replay a log into a new state that is declared with the wider types."""
        return f"{self.format_types(fix.types)}, in a new state"

    def format_engine_evolve_call(self, fix: EvolveFix) -> str:
        """Format the call that declares wider types to an open engine.

        The returned text ends with ", or ". If no call can declare wider types, the text is "".
        """
        return f"engine.evolve({ {fix.input: dict(fix.types)} if fix.input else dict(fix.types) }), or "

    def format_verb(self, name: str) -> str:
        """Format the name of a ddflow function or command, without arguments."""
        return f"dd.{name}"

    def format_file(self, path: str, options: Mapping[str, Any]) -> str:
        """Format a file with the options that describe its format."""
        return f"dd.FilePath({', '.join([repr(path), *(f'{name}={value!r}' for name, value in options.items())])})"

    def format_tombstone(self, column: str, value: Any = None) -> str:
        """Format a tombstone rule: a column, and the value that marks a delete."""
        return f"dd.tombstone({column!r}{'' if value is None else f', {value!r}'})"


PYTHON: Final = FixSyntax()


class ErrorTextPart:
    """A part of a message that is data."""

    def text(self, words: FixSyntax) -> str:
        """Format the part in the given syntax."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text(PYTHON)

    def __add__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(self, other)

    def __radd__(self, other: str) -> ErrorText:
        return ErrorText(other, self)


@dataclass(frozen=True)
class Row(ErrorTextPart):
    """The number of a row in a call, counted from 0.

    The reader of a file may give the row a name, such as its line in the file.

    ``before`` and ``after`` are texts around the row; with the name "" nothing is printed. ``inner`` marks a row of an
    operator, not of the call.

    >>> str(Row(3)), Row(3, ", first in ", name="line 5").text(PYTHON), Row(0, after=": ", name="").text(PYTHON)
    ('row 3, counted from 0', ', first in line 5', '')
    """

    number: int
    before: str = ""
    after: str = ""
    inner: bool = False
    name: str | None = None

    def text(self, words: FixSyntax) -> str:
        """Format the row for people."""
        name = f"row {self.number}{'' if self.inner else ', counted from 0'}" if self.name is None else self.name
        return f"{self.before}{name}{self.after}" if name else ""


def format_location(before: str, place: str | Row, after: str = "") -> str | ErrorTextPart:
    """Format a place, such as a row, with the text before and after it.

    If the place is a row with the name "", the result is empty.

    >>> str(format_location("7 rows, first in ", Row(3))), format_location("", "offset 9", ": no JSON")
    ('7 rows, first in row 3, counted from 0', 'offset 9: no JSON')
    """
    if isinstance(place, Row):
        return replace(place, before=before + place.before, after=place.after + after)
    return ErrorText(before, place, after)


class Fix(ErrorTextPart):
    """An option or a call that fixes an error if the user types it."""


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
        """Format the option as the user types it."""
        return words.format_option(self.name, self.value)


@dataclass(frozen=True)
class DeclareFix(Fix):
    """Advice to declare the types of some columns, by name."""

    types: Mapping[str, str]

    def text(self, words: FixSyntax) -> str:
        """Format the types as the user types them."""
        return words.format_types(self.types)


@dataclass(frozen=True)
class InputTypesFix(Fix):
    """Advice to declare types for one of several inputs."""

    input: str

    def text(self, words: FixSyntax) -> str:
        """Format the declaration as the user types it."""
        return words.format_input_types(self.input)


@dataclass(frozen=True)
class EvolveFix(Fix):
    """Advice to rewrite a state: widen columns of an input, or drop outputs and inputs.

    ``moves``: True if no rewrite can change the types, so the log must be replayed into a new state.

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
        """Dropped outputs and inputs, by option."""
        return {"drop_outputs": self.drop_outputs, "drop_inputs": self.drop_inputs}

    def text(self, words: FixSyntax) -> str:
        """Format the call as the user types it."""
        return words.format_migration(self) if self.moves else words.format_evolve_call(self)


@dataclass(frozen=True)
class WidenFix(EvolveFix):
    """Advice to rewrite a state because a column may have become wider at its source.

    The text of the advice is written at the end of a remedy.

    ``declared``: True if the remedy already names the type. ``reads``: True if an open engine accepts the type, too.
    ``new``: True if the state is still empty. ``fixed``: the columns that no rewrite can change.

    >>> str(WidenFix({"c": "double"}, declared=True))
    "; to change the column in a state, use dd.evolve(STATE, {'c': 'double'})"
    >>> str(WidenFix({"c": "double"}, new=True))
    "; declare the type that fits: {'c': 'double'}"
    >>> str(WidenFix({"c": "double"}, fixed=["c"]))
    '; a state cannot change the column to that type; create a new state'
    """

    declared: bool = False
    reads: bool = False
    new: bool = False
    fixed: Collection[str] = ()

    def text(self, words: FixSyntax) -> str:
        """Format the remedy, with the punctuation that joins it to the text before it."""
        if self.new:
            return "" if self.declared else f"; declare the type that fits: {words.format_types(self.types)}"
        if not self.types or not self.types.keys().isdisjoint(self.fixed):
            return "; a state cannot change the column to that type; create a new state"
        why = "to change the column in a state, use " if self.declared else "if the column became wider at its source: "
        return f"; {why}{words.format_engine_evolve_call(self) if self.reads else ''}{words.format_evolve_call(self)}"


@dataclass(frozen=True)
class CommandFix(Fix):
    """The name of a ddflow function or command, such as ``rollback``, without arguments."""

    name: str

    def text(self, words: FixSyntax) -> str:
        """Format the name as the user calls it."""
        return words.format_verb(self.name)


@dataclass(frozen=True)
class FileFix(Fix):
    """A file with options that describe its format."""

    path: str
    options: Mapping[str, Any]

    def text(self, words: FixSyntax) -> str:
        """Format the file as the user types it."""
        return words.format_file(self.path, self.options)


@dataclass(frozen=True)
class TombstoneFix(Fix):
    """A tombstone rule: a column, and the value that marks a delete."""

    column: str
    value: Any = None

    def text(self, words: FixSyntax) -> str:
        """Format the rule as the user types it."""
        return words.format_tombstone(self.column, self.value)


class ErrorText(str):
    """A text that remembers which of its parts are data. As a plain string, it has Python's syntax.

    >>> ErrorText("null in ", Row(3), "; choose ", Option("late", "drop")) + "!"
    "null in row 3, counted from 0; choose late='drop'!"
    """

    parts: tuple[str | ErrorTextPart, ...]

    def __new__(cls, *given: str | ErrorTextPart) -> ErrorText:
        """Join plain texts and data parts into one text."""
        parts = [part for each in given for part in (each.parts if isinstance(each, ErrorText) else (each,))]
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = tuple(parts)
        return made

    @classmethod
    def join_texts(cls, between: str, texts: Iterable[str | ErrorTextPart]) -> ErrorText:
        """Join texts like `str.join`."""
        return cls(*[part for each in texts for part in (between, each)][1:])

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.parts

    def __add__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(self, other)

    def __radd__(self, other: str | ErrorTextPart) -> ErrorText:
        return ErrorText(other, self)


def format_error_text(text: str, words: FixSyntax) -> str:
    """Format the data in a text in the given syntax, and mask secrets. A plain string is not formatted again."""
    parts = text.parts if isinstance(text, ErrorText) else (text,)
    return mask_secrets("".join(each if isinstance(each, str) else each.text(words) for each in parts))


def _mask_phrase(given: str | ErrorTextPart) -> ErrorText:
    return ErrorText(*(mask_secrets(each) if isinstance(each, str) else each for each in ErrorText(given).parts))


class DdflowError(Exception):
    """The base class of all errors of ddflow. The message is ``asked: found; fix``.

    Parameters
    ----------
    asked : str
        The request.
    found : str
        The finding.
    fix : str
        The remedy.  Each of the three may be an `ErrorText` with data in it.
    input : str, optional
        The input whose rows caused the error.
    file : str, optional
        The file of these rows.
    row : int, optional
        The first of these rows, counted from 0; by default the first `Row` in the texts.
    offset : str, optional
        The place of a message in its log, as its format writes it.
    column : str, optional
        The column that caused the error.
    """

    words: FixSyntax = PYTHON
    """The syntax in which `str` writes the message."""
    cells: str = ""
    """The values of the row that caused the error, as text."""

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
        """The request."""
        return self.args[0]  # type: ignore[no-any-return]

    @property
    def found(self) -> ErrorText:
        """The finding."""
        return self.args[1]  # type: ignore[no-any-return]

    @property
    def fix(self) -> ErrorText:
        """The remedy."""
        return self.args[2]  # type: ignore[no-any-return]

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The suggested options and calls as data, in the order in which they occur in the message."""
        return tuple(each for each in self.fix.parts if isinstance(each, Fix))

    @property
    def message(self) -> ErrorText:
        """The whole message: request, finding and remedy."""
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
    """Replace texts of an error, and return the error."""
    new = (asked, found, fix)
    error.args = tuple(old if text is None else _mask_phrase(text) for old, text in zip(error.args, new, strict=True))
    return error


def replace_error_parts(error: T, kind: Any, change: Callable[[Any], str | ErrorTextPart]) -> T:
    """Replace the data parts of one class in the texts of an error, and return the error."""
    error.args = tuple(
        ErrorText(*(change(each) if isinstance(each, kind) else each for each in text.parts)) for text in error.args
    )
    return error


def set_error_input(error: T, input: str, several: bool) -> T:
    """Set the input that an error names. ``several``:

    True if the plan has several inputs, so fixes must name the input.
    """
    error.input = error.input or input
    return (
        replace_error_parts(error, EvolveFix, lambda fix: replace(fix, input=fix.input or input)) if several else error
    )


def set_error_state(error: T, state: str | None, fixed: Collection[str] = ()) -> T:
    """Set the state that the text of an error mentions. ``state``: None for a new state.

    ``fixed``: columns that no rewrite can change.
    """

    def locate(fix: EvolveFix) -> Fix:
        if isinstance(fix, WidenFix):
            return replace(fix, state=state, new=state is None, fixed=fixed)
        if state is None and fix.types:
            return DeclareFix(fix.types)
        return replace(fix, state=state, moves=fix.moves or not fix.types.keys().isdisjoint(fixed))

    return replace_error_parts(error, EvolveFix, locate)


def set_error_row_names(error: T, name: Callable[[int], str], file: str = "") -> T:
    """Replace row numbers in the text of an error by the lines or rows of the file.

    ``name``: a function from a row's number to its name.
    """
    error.file = error.file or file
    return replace_error_parts(error, Row, lambda row: replace(row, name="" if row.inner else name(row.number)))
