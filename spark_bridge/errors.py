"""Pass ddflow's errors from Spark's tasks and batches to the driver, and raise the errors again there.

A task runs in a block of `attach_error_notes`, and the driver waits in a block of `translate_errors`. If an error
leaves the block in the task, the driver's block raises an error with the same class and the same three parts.
Other errors of Spark stay unchanged. Spark sends only the text of a traceback, so each error gets a note that contains
the error as JSON. The driver parses the JSON of this note and never executes any part of it.

>>> from ddflow.errors import NullKey
>>> try:
...     with attach_error_notes():
...         raise NullKey("a step", "row 7 has no key", "fix it")
... except NullKey as error:
...     parse_error("".join(traceback.format_exception(error)))
NullKey('a step', 'row 7 has no key', 'fix it')
"""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ddflow import errors
from ddflow.errors import (
    CommandFix,
    DdflowError,
    DeclareFix,
    ErrorText,
    ErrorTextPart,
    EvolveFix,
    FileFix,
    FixSyntax,
    InputTypesFix,
    Option,
    Row,
    TombstoneFix,
    WidenFix,
)
from ddflow.errors.base import replace_error_texts, set_error_row_names

PARTS: Final = {
    each.__name__: each
    for each in (Row, Option, DeclareFix, InputTypesFix, EvolveFix, WidenFix, CommandFix, FileFix, TombstoneFix)
}
"""The classes whose objects can be parts of an error text."""
WHERE: Final = ("input", "file", "offset", "column", "row")
MARK: Final = "as an error of ddflow: "


class SparkSyntax(FixSyntax):
    """The syntax for fixes in error texts on Spark."""

    def format_evolve_call(self, fix: EvolveFix) -> str:
        """See `FixSyntax.format_evolve_call`."""
        return super().format_evolve_call(fix).replace("dd.", "spark_bridge.", 1)

    def format_engine_evolve_call(self, fix: EvolveFix) -> str:
        """Return an empty text, because Spark has no open engine."""
        return ""

    def format_verb(self, name: str) -> str:
        """See `FixSyntax.format_verb`."""
        return f"spark_bridge.{name}" if name == "evolve" else super().format_verb(name)


SPARK: Final = SparkSyntax()


@contextmanager
def attach_error_notes() -> Iterator[None]:
    """Add a note to each ddflow error that leaves the block. The note has the error as JSON, without its row number.

    Tasks and batches count rows from the start of a split of Spark, so this number does not show which row of the
    DataFrame it is. If an error has the cells of the row, the text of the error shows these cells.
    """
    try:
        yield
    except DdflowError as error:
        found = error.found
        set_error_row_names(error, lambda row: "").row = None
        replace_error_texts(
            error, found=error.found + f", such as {error.cells}" if error.cells and found != error.found else None
        )
        _attach_error_note(error)
        raise


def _attach_error_note(error: Exception) -> None:
    if isinstance(error, DdflowError) and not any(each.startswith(MARK) for each in getattr(error, "__notes__", ())):
        texts = [[_encode_phrase_part(part) for part in text.parts] for text in error.args]
        where = {name: getattr(error, name) for name in WHERE}
        error.add_note(MARK + json.dumps([type(error).__name__, texts, where], default=str))


def _encode_phrase_part(part: str | ErrorTextPart) -> Any:
    """Convert a part of a text to JSON: the name of its class and its arguments."""
    if isinstance(part, str):
        return part
    given = {each.name: getattr(part, each.name) for each in fields(part)}  # type: ignore[arg-type]
    return [type(part).__name__, {name: value for name, value in given.items() if value is not ...}]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Replace a Spark error that leaves the block by the ddflow error in its text, if there is one."""
    try:
        yield
    except DdflowError as error:
        error.words = SPARK
        raise
    except PySparkException as error:
        own = parse_error("".join(traceback.format_exception_only(error)))
        if own is None:
            raise
        own.words = SPARK
        raise own from error


def fail_query(session: SparkSession, query: Any, error: Exception) -> None:
    """Make a query of classic Spark fail at its next trigger. The failure has the text of the error. O(1).

    If Spark does not accept the error, the query stops but does not count as failed.
    """
    _attach_error_note(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    try:
        java: Any = session.sparkContext._jvm
        query._jsq.streamingQuery().errorNotifier().markError(java.java.lang.RuntimeException(text))
    except Exception:  # not a public interface of Spark: other versions may lack any part
        query.stop()


def parse_error(text: str) -> DdflowError | None:
    """Parse the last ddflow error in a text of tracebacks; return None if there is none."""
    found = None
    for line in text.splitlines():
        _, mark, rest = line.partition(MARK)
        if mark:
            found = _decode_error(rest) or found
    return found


def _decode_error(text: str) -> DdflowError | None:
    try:
        given: Any = json.JSONDecoder().raw_decode(text)[0]
    except ValueError:
        return None
    if not (isinstance(given, list) and len(given) == 3 and isinstance(given[0], str)):
        return None
    kind, (texts, where) = getattr(errors, given[0], None), given[1:]
    if not (isinstance(kind, type) and issubclass(kind, DdflowError)):
        return None
    try:
        asked, found, fix = (ErrorText(*map(_decode_phrase_part, each)) for each in texts)
        return kind(asked, found, fix, **{name: where[name] for name in WHERE})
    except (TypeError, ValueError, KeyError):
        return None


def _decode_phrase_part(given: Any) -> str | ErrorTextPart:
    """Restore a part of a text from JSON. Raises `TypeError`, `KeyError` and `ValueError` for invalid data."""
    if isinstance(given, str):
        return given
    name, made = given
    return PARTS[name](**made)
