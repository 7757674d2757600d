"""A function that is known by name only: what a plan that was read back has in the place of code.

Invariant: it stands for a function in whatever is said of it (its name, and a digest of its code), and is never
called. A plan that is compared with another has to hold the same things, and nothing that is read is run. A digest is
only worth comparing where the same Python made it; so who made it stands beside it.

>>> told = told_of(len)
>>> told["function"], Absent.of_json(told).name
('builtins.len', 'builtins.len')
>>> told_of(Absent.of_json(told)) == told
True
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from ddflow.errors import SpecError
from ddflow.plan.text.formulas import digest_of

KEYS = ("function", "python", "digest")


@dataclass(frozen=True)
class Absent:
    """A function without its code.  ``python``, ``digest``: the maker of the digest of its code, and the digest."""

    name: str
    python: str
    digest: str

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Self:
        """Read the JSON that `told_of` wrote.  Raises `SpecError` for anything else."""
        texts = [given.get(name) for name in KEYS]
        if not all(isinstance(each, str) for each in texts):
            raise SpecError("a function from JSON", repr(dict(given)), "give what to_json() wrote")
        return cls(*map(str, texts))

    def __call__(self, *_: Any) -> NoReturn:
        raise SpecError(f"run {self.name}", "the plan was read back, and no JSON holds code", "give the flow itself")


def name_of(function: Any) -> str:
    """Return a function's module and qualified name."""
    if isinstance(function, Absent):
        return function.name
    inner = getattr(function, "py_func", function)
    home = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{home}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def told_of(function: Any) -> dict[str, str]:
    """Describe a function as JSON: its name, the maker of its digest, the digest of its code.  O(code)."""
    if isinstance(function, Absent):
        return dict(zip(KEYS, (function.name, function.python, function.digest), strict=True))
    digest = digest_of(getattr(function, "py_func", function))
    return dict(zip(KEYS, (name_of(function), str(sys.implementation.cache_tag), digest), strict=True))


def same_function(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two may be the same, as far as that can be told: by name, and by digest where the same Python made it."""
    told = one.get("python") != other.get("python") or one.get("digest") == other.get("digest")
    return bool(one.get("function") == other.get("function") and told)
