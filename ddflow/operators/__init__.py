"""Operators: updates in, updates out, one operator a file.

``base`` has the protocol. A new operator is one file here, and a method in `ddflow.plan.verbs`; every file is loaded
with the room, so that it is in the registry. ``upsert`` makes the updates of inputs, and is no operator on updates.
"""

from importlib import import_module
from pkgutil import iter_modules

for _each in iter_modules(__path__):
    import_module(f"{__name__}.{_each.name}")
