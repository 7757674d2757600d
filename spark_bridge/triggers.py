"""The trigger of a query: when Spark makes a batch, as its ``writeStream.trigger`` takes it.

Invariant: what is no trigger of a query whose batches are handed to a function, or no span of time that Spark reads, is
refused before anything is opened, in the words of the caller.

>>> until_the_end({"availableNow": True}), until_the_end({"processingTime": "1 minute"}), until_the_end(None)
(True, False, False)
>>> check_trigger({"availablenow": True})
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: stream with trigger={'availablenow': True}: it names 'availablenow'; did you mean \
'availableNow'? there are ...
"""

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any, Final

from pyspark.sql.streaming.readwriter import DataStreamWriter

from ddflow.columns.names import did_you_mean
from ddflow.errors import SpecError, cut

FLAGS: Final = ("availableNow", "once")
"""The triggers that end by themselves; they are true or left out."""
ENDLESS: Final = ("continuous", "realTime")
"""The triggers that make no batches."""
SPAN: Final = re.compile(
    r"\s*(interval\s+)?([+-]?\s*\d+(\.\d*)?\s*((micro|milli)?second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)


def check_trigger(trigger: Any) -> None:
    """Raise `SpecError` for an invalid trigger. O(1)."""
    if trigger is None or trigger == {}:
        return
    asked = cut(f"stream with trigger={trigger!r}")
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        found = f"it has {len(trigger)} names" if isinstance(trigger, Mapping) else f"it is a {type(trigger).__name__}"
        raise SpecError(asked, found, "give one: {'availableNow': True}, or {'processingTime': '10 seconds'}")
    ((name, value),) = trigger.items()
    known = [each for each in signature(DataStreamWriter.trigger).parameters if each not in ("self", *ENDLESS)]
    if name not in known:
        raise SpecError(asked, f"it names {name!r}", did_you_mean(name, known))
    if name in FLAGS and value is not True:
        raise SpecError(asked, f"{name} is {value!r}", "give True, or leave trigger= out")
    if name not in FLAGS and not (isinstance(value, str) and SPAN.fullmatch(value)):
        raise SpecError(asked, f"{name} is {value!r}", f"give a span of time as text: {{{name!r}: '10 seconds'}}")


def until_the_end(trigger: Mapping[str, Any] | None) -> bool:
    """Whether a query with this trigger ends by itself.  O(1)."""
    return bool(trigger) and any((trigger or {}).get(each) for each in FLAGS)
