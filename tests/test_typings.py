"""Test the type stubs of Arrow: every name in ``typings`` exists in the installed pyarrow.

The stubs of an array and of a data type have the members of all subclasses. So a member may exist only in a subclass.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent / "typings"
STUBS = sorted(HERE.rglob("*.pyi"))


def named(body: list[ast.stmt]) -> set[str]:
    """The names that the stub of a module or a class says it has; those that begin with ``_`` are its own affair."""
    found = {each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    found |= {each.target.id for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def family(kind: type) -> list[type]:
    """A class and all below it."""
    return [kind, *(each for below in type.__subclasses__(kind) for each in family(below))]


@pytest.mark.parametrize("path", STUBS, ids=lambda path: path.stem)
def test_what_the_types_name_is_there(path: Path) -> None:
    name = ".".join(path.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__")
    module, body = import_module(name), ast.parse(path.read_text()).body
    missing = {each for each in named(body) if not hasattr(module, each)}
    for stub in (each for each in body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")):
        there = set().union(*map(dir, family(getattr(module, stub.name))))
        missing |= {f"{stub.name}.{each}" for each in named(stub.body) - there}
    assert not missing, f"{name} has no {sorted(missing)}: take them out of {path.name}"


def test_there_are_types() -> None:
    assert {path.stem for path in STUBS} >= {"__init__", "compute", "ipc", "types"}
