"""Run the operators of a plan. Each operator turns the updates of its inputs into updates of its output.

``base`` defines the protocol. Importing this package loads every operator file, so that each operator registers itself.
The subpackage ``upsert`` turns the events of inputs into updates.
"""

from importlib import import_module
from pkgutil import iter_modules

for _each in iter_modules(__path__):
    import_module(f"{__name__}.{_each.name}")
