"""ddflow's errors across Spark: what a task or a batch refused is raised again on the other side as what it was.

Invariant: an error that a task raised inside `noted` comes out of a block `translated` as the same class with the same
three parts; any other error of Spark's stays as it is. All that Spark carries from a worker to the driver, and from a
batch to who awaits its query, is the text of a traceback, in which a message of several lines has no end; so each error
carries itself along, in a note below its message, that only this module reads. Nothing that comes back is run: a name
is looked up among ddflow's errors, and the parts are text.

>>> from ddflow.errors import NullKey
>>> try:
...     with noted():
...         raise NullKey("a step", "row 7 has no key", "mend it")
... except NullKey as error:
...     text = "".join(traceback.format_exception(error))
>>> parsed(text)
NullKey('a step', 'row 7 has no key', 'mend it')
"""

import json
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ddflow import errors
from ddflow.errors import DdflowError

_ROW: Final = re.compile(r"(, first (in )?)?\brow \d+, counted from 0(: )?")
MARK: Final = "as an error of ddflow: "


@contextmanager
def noted() -> Iterator[None]:
    """An error of ddflow's that leaves the block carries itself in a note, without a number of a row.

    Rows of a task or a batch are counted from where Spark cut them, which says nothing about the DataFrame. Where the
    error knows the row itself, it says that.
    """
    try:
        yield
    except DdflowError as error:
        found = _ROW.sub("", error.found)
        error.found = f"{found}, such as {error.row}" if error.row and found != error.found else found
        error.args = (error.asked, error.found, error.remedy)
        _note(error)
        raise


def _note(error: Exception) -> None:
    if isinstance(error, DdflowError) and not any(each.startswith(MARK) for each in getattr(error, "__notes__", ())):
        error.add_note(MARK + json.dumps([type(error).__name__, error.asked, error.found, error.remedy]))


@contextmanager
def translated() -> Iterator[None]:
    """An error of Spark's that leaves the block, and carries one of ddflow's, becomes that one."""
    try:
        yield
    except PySparkException as error:
        own = parsed("".join(traceback.format_exception_only(error)))
        if own is None:
            raise
        raise own from error


def fail(session: SparkSession, query: Any, error: Exception) -> None:
    """End a classic query from outside of its batches: it fails with the error's text at its next trigger.

    A Spark that cannot be given an error so is asked to stop the query instead, which fails nothing.  O(1).
    """
    _note(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    try:
        java: Any = session.sparkContext._jvm
        query._jsq.streamingQuery().errorNotifier().markError(java.java.lang.RuntimeException(text))
    except Exception:  # this is no interface of Spark's, so another version may lack any part of it
        query.stop()


def parsed(text: str) -> DdflowError | None:
    """The last error that a text of tracebacks carries; None for none, and for what is no error of ddflow's."""
    found = None
    for line in text.splitlines():
        _, mark, rest = line.partition(MARK)
        if mark:
            found = _read(rest) or found
    return found


def _read(text: str) -> DdflowError | None:
    try:
        given: Any = json.JSONDecoder().raw_decode(text)[0]
    except ValueError:
        return None
    if not (isinstance(given, list) and len(given) == 4 and all(isinstance(each, str) for each in given)):
        return None
    kind = getattr(errors, given[0], None)
    if not (isinstance(kind, type) and issubclass(kind, DdflowError)):
        return None
    return kind(given[1], given[2], given[3])
