"""The index of errors: what each class means and what to do, out of its docstring.

Invariant: an entry is written in one place, the class. The shell (``ddflow errors``) and the site show the same.

>>> found = entry(events.NullKey)
>>> found.means, found.remedy[:13]
('An event has no key: one of its key columns is null.', 'give the key;')
"""

import inspect
from types import ModuleType
from typing import Final, NamedTuple

from ddflow.errors import engines, events, files, jobs, plans, results, states
from ddflow.errors.base import DdflowError

GROUPS: Final[dict[str, ModuleType]] = {
    "Plans and functions": plans,
    "What you give": events,
    "Results and reads": results,
    "Engines and memory": engines,
    "Durable state": states,
    "Files, sources and sinks": files,
    "Jobs of many tasks": jobs,
}
"""The files of classes, by what they are about."""
TO_DO: Final = "What to do: "


class ErrorEntry(NamedTuple):
    """A class of errors: in one sentence, in more, and what to do."""

    name: str
    means: str
    more: str
    remedy: str


def classes(of: ModuleType) -> list[type[DdflowError]]:
    """The classes of a file, in its order."""
    return [each for each in vars(of).values() if isinstance(each, type) and each.__bases__[0] is DdflowError]


def entry(of: type[DdflowError]) -> ErrorEntry:
    """The entry of a class; each part is one line."""
    means, *more, remedy = [" ".join(part.split()) for part in (inspect.getdoc(of) or "").split("\n\n")]
    return ErrorEntry(of.__name__, means, " ".join(more), remedy.removeprefix(TO_DO))
