"""Options by name: a class whose maker says which option was meant where there is none of a name.

Invariant: what is made, and with which options, is the class's own business; only names that it does not have are
refused here, before it is asked. Python's own error names neither the nearest option nor the others, and it is no
error of ddflow's. Limits: values are not looked at, and options that are missing stay Python's to name.

>>> from dataclasses import dataclass
>>> @named_options
... @dataclass(frozen=True)
... class Point:
...     across: int = 0
>>> Point(across=3)
Point(across=3)
>>> Point(acros=3)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: Point(acros=...): there is no such option; did you mean 'across'? there are ['across']
"""

from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from ddflow.columns.names import did_you_mean
from ddflow.errors import SpecError

Made = TypeVar("Made")


def named_options(made: type[Made]) -> type[Made]:
    """Make a dataclass raise `SpecError` for an option that it does not have.  O(options) a call."""
    init: Any = vars(made)["__init__"]
    kept: Any = made
    known = [each.name for each in fields(kept) if each.init]

    @wraps(init)
    def checked(self: Any, *given: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                asked = f"{made.__name__}({name}=...)"
                raise SpecError(asked, "there is no such option", did_you_mean(name, known))
        init(self, *given, **options)

    kept.__init__ = checked
    return made
