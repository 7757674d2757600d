"""The registry: the operators that a plan can have, by verb.

Each file in ``ddflow/operators`` adds its own when that room is loaded, which is when the first verb is asked for. So
plans, which stand below, know operators by their verbs only.
"""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

_REGISTERED: dict[str, Any] = {}
Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Add an operator under its ``verb``: a decorator of its class."""
    _REGISTERED[kind.verb] = kind  # type: ignore[attr-defined]
    return kind


def operators() -> Mapping[str, Any]:
    """Load all operators, by verb."""
    importlib.import_module("ddflow.operators")
    return _REGISTERED


def operator(verb: str) -> Any:
    """Find the class of an operator.  Raises `KeyError` for an unknown verb."""
    return operators()[verb]
