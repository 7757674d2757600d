"""Define the base classes of verb families, and the registry of operators.

The first call of a verb loads the package ``ddflow.operators``. When the package loads, each of its files registers an
operator. So a plan refers to an operator only by the name of its verb.

Guarantees: for a method name of another library, such as ``select``, the error suggests the verb of ddflow.
"""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from ddflow.errors import NoSuchVerb, SpecError

_REGISTERED: dict[str, Any] = {}
Kind = TypeVar("Kind", bound=type)


def register_operator(kind: Kind) -> Kind:
    """Decorate an operator class, so that the class is registered under its ``verb``."""
    _REGISTERED[kind.verb] = kind  # type: ignore[attr-defined]
    return kind


def load_operators() -> Mapping[str, Any]:
    """Load all operators and return their classes by verb."""
    importlib.import_module("ddflow.operators")
    return _REGISTERED


def find_operator_class(verb: str) -> Any:
    """Find the class of an operator.  Raises `KeyError` for an unknown verb."""
    return load_operators()[verb]


Made = TypeVar("Made")
"""The type of a verb's result. The result is a collection."""


class VerbFamily(Generic[Made]):
    """A base class of verbs. ``flow``: the plan.

    If an equal collection exists, the plan returns the existing collection instead of a new collection.
    """

    flow: Any

    def _apply_verb(self, verb: str, *told: Any) -> Made:
        made: Made = self.flow.reuse_equal_node(find_operator_class(verb)(self, *told))
        return made


def check_same_flow(verb: str, first: Any, other: Any) -> None:
    """Raise `SpecError` if ``other`` is not a collection, or belongs to another flow than ``first``."""
    if getattr(other, "flow", None) is not first.flow:
        raise SpecError(
            verb, f"{other!r:.99} is not a collection of the same flow", "build both collections in one flow"
        )


ALIKE: Final = 0.8
"""A message suggests names whose similarity, from 0 to 1, is at least this number."""


class ForeignVerbHints:
    """A base class that suggests verbs for method names of other libraries.

    >>> class Rows(ForeignVerbHints):
    ...     _shown, _instead = "a collection", {"select": "project([...])"}
    ...     def project(self): ...
    >>> for name in ("select", "projects", "explode"):
    ...     try:
    ...         getattr(Rows(), name)
    ...     except AttributeError as error:
    ...         print(error)
    a collection: it has no 'select'; write project([...])
    a collection: it has no 'projects'; did you mean 'project'?
    a collection: it has no 'explode'; help(...) lists its methods
    """

    _shown: ClassVar[str]
    """The noun by which messages call the object."""
    _instead: ClassVar[Mapping[str, str]]
    """Maps each method name of another library to the code that messages suggest."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            near = get_close_matches(name, [each for each in dir(type(self)) if each[0] != "_"], 1, ALIKE)
            remedy = f"did you mean {near[0]!r}?" if near else "help(...) lists its methods"
            if name in self._instead:
                remedy = f"write {self._instead[name]}"
            raise NoSuchVerb(self._shown, f"it has no {name!r}", remedy)
