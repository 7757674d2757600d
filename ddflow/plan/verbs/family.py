"""Define the base classes of verb families, and the registry of operators.

Each file in ``ddflow/operators`` registers its operator when the package loads, on the first call of a verb. So plans
refer to operators only by verb.

Guarantees: for a verb's name in another library, such as ``select``, the error names the verb of ddflow.
"""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from ddflow.errors import NoSuchVerb, SpecError

_REGISTERED: dict[str, Any] = {}
Kind = TypeVar("Kind", bound=type)


def register_operator(kind: Kind) -> Kind:
    """Register an operator class under its ``verb``, as a decorator."""
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
"""The type of a verb's result: a collection."""


class VerbFamily(Generic[Made]):
    """A base class of verbs.  ``flow``: the plan, which replaces a new collection by an equal existing one."""

    flow: Any

    def _apply_verb(self, verb: str, *told: Any) -> Made:
        made: Made = self.flow.reuse_equal_node(find_operator_class(verb)(self, *told))
        return made


def check_same_flow(verb: str, first: Any, other: Any) -> None:
    """Raise `SpecError` if ``other`` is not a collection of the flow of ``first``."""
    if getattr(other, "flow", None) is not first.flow:
        raise SpecError(verb, f"{other!r:.99} is no collection or of another flow", "build both in one flow")


ALIKE: Final = 0.8
"""Minimum similarity, 0 to 1, of a name to suggest it."""


class ForeignVerbHints:
    """A base class that suggests verbs for names of other libraries.

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
    a collection: it has no 'explode'; help(...) lists what it has
    """

    _shown: ClassVar[str]
    """The object's name in messages."""
    _instead: ClassVar[Mapping[str, str]]
    """The code to suggest, by foreign name."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            near = get_close_matches(name, [each for each in dir(type(self)) if each[0] != "_"], 1, ALIKE)
            remedy = f"did you mean {near[0]!r}?" if near else "help(...) lists what it has"
            if name in self._instead:
                remedy = f"write {self._instead[name]}"
            raise NoSuchVerb(self._shown, f"it has no {name!r}", remedy)
