"""Verbs that other libraries have under other names: what to call here.

Invariant: a name that is no attribute is an `AttributeError`, as everywhere in Python, and says what to write.  Names
that begin with an underscore are Python's own business.  A type checker does not see it, so it still finds such names.

>>> class Rows(NamesElsewhere):
...     _shown, _instead = "a collection", {"select": "project([...])"}
...     def project(self): ...
>>> for name in ("select", "projects", "explode"):
...     try:
...         getattr(Rows(), name)
...     except AttributeError as error:
...         print(error)
a collection: it has no 'select'; write project([...])
a collection: it has no 'projects'; did you mean 'project'?
a collection: it has no 'explode'; help(...) lists what it has
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Final

from ddflow.errors import NoSuchVerb

ALIKE: Final = 0.8
"""How alike a name must be to be meant; from 0 to 1."""


class NamesElsewhere:
    """A base that suggests verbs for names of other libraries."""

    _shown: ClassVar[str]
    """What messages call it."""
    _instead: ClassVar[Mapping[str, str]]
    """By name, what to write."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            near = get_close_matches(name, [each for each in dir(type(self)) if each[0] != "_"], 1, ALIKE)
            remedy = f"did you mean {near[0]!r}?" if near else "help(...) lists what it has"
            if name in self._instead:
                remedy = f"write {self._instead[name]}"
            raise NoSuchVerb(self._shown, f"it has no {name!r}", remedy)
