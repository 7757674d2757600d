"""Test that the public interface equals its recorded form: names, command-line help, and answers of workloads.

Other tests check whether the interface is right. The recorded files show each change of the interface, line by line, so
that no change is made by accident. ``make golden`` records ``tests/golden/outside/`` again; read its diff.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import VERBS, app

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "outside"
PACKAGES = (
    "ddflow",
    "ddflow.connectors.formats",
    "ddflow.connectors.sinks",
    "ddflow.connectors.sources",
    "ddflow.errors",
    "ddflow.testing",
    "spark_bridge",
)
SHAPES = {
    "w1": {"keys": 20_000},
    "w1s": {"keys": 2_000},
    "w1z": {"keys": 20_000, "zipf": 1.2},
    "w3": {"keys": 20_000, "strings": True},
}
EVENTS = 200_000


# Public names.


def signature(name: str, thing: Any) -> str:
    """A name with what it is called with: parameters and defaults.  Types are left out: callers do not write them."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return name + re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(bare)))


def members(thing: type) -> Iterator[str]:
    """What a class of ours shows: methods with what they are called with, and properties.  Fields that a caller gives
    are in the class's own signature."""
    names = {
        name for base in thing.__mro__ if base.__module__.startswith(("ddflow", "spark_bridge")) for name in vars(base)
    }
    if issubclass(thing, dd.DdflowError) and thing is not dd.DdflowError:
        names -= vars(dd.DdflowError).keys()  # shown once
    for name in sorted(names):
        if name.startswith("_") and name not in ("__iter__", "__len__", "__getitem__", "__enter__", "__exit__"):
            continue
        found = inspect.getattr_static(thing, name, None)
        plain = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if inspect.isfunction(plain):
            kind = f"{type(found).__name__} " if plain is not found else ""
            yield kind + signature(name, plain)
        elif isinstance(found, property):
            yield f"property {name}"


def names() -> str:
    """Every public name, a line each, and what it shows."""
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        public = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == package
        ]
        for name in sorted(public):
            thing = getattr(module, name)
            if isinstance(thing, type):
                bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
                lines.append(f"{package}: class {signature(name, thing)}" + (f" is {bases}" if bases else ""))
                lines += [f"{package}:     {name}.{each}" for each in members(thing)]
            elif callable(thing):
                lines.append(f"{package}: {signature(name, thing)}")
            else:
                lines.append(f"{package}: {name}" + ("" if name == "__version__" else f" = {thing!r}"))
    return "\n".join(lines) + "\n"


# The command line.


def help_texts(width: int = 2000) -> str:
    """What ``--help`` says of each verb: words only, wrapped anew, so that no terminal's width shows."""
    texts = []
    for verb in ("", *VERBS):
        done = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": str(width), "TERM": "xterm"})
        assert done.exit_code == 0, verb
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        lines = [" ".join(re.sub("[│╭╮╰╯─]+", " ", line).split()) for line in plain.splitlines()]
        wrapped = [
            textwrap.fill(line, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
            for line in lines
            if line
        ]
        texts.append("\n".join([f"# ddflow {verb}".rstrip(), *wrapped]))
    return "\n\n".join(texts) + "\n"


def test_help_does_not_depend_on_the_width_of_the_terminal() -> None:
    assert help_texts(2000) == help_texts(3000)


# Answers.


def workloads() -> Any:
    """The bench's maker and its checksum."""
    sys.path.insert(0, str(ROOT / "bench"))
    return importlib.import_module("workloads")


def flow_of(schema: pa.Schema, spec: dd.Upsert, some: str) -> dd.Flow:
    """Rows, some of them, and a count."""
    flow = dd.Flow()
    rows = flow.upserts("events", schema, spec)
    flow.output("rows", rows)
    flow.output("some", rows.filter(some))
    flow.output("counts", rows.project(["val"]).count())
    return flow


def answers(name: str) -> dict[str, Any]:
    """How many updates a workload has in both modes, their checksums in any order, the verdicts, and what is left."""
    made = workloads()
    events, found = made.build(made.Shape(n=EVENTS, **SHAPES[name])), {}
    some = "val like 'city-00%'" if SHAPES[name].get("strings") else "val < 100"
    for mode in ("epoch", "hold-back"):
        spec = (
            dd.Upsert(key="key", order_by="time", delete="val is null")
            if mode == "epoch"
            else dd.Upsert(key="key", time="time", delete="val is null")
        )
        updates: dict[str, list[pa.Table]] = {"rows": [], "some": [], "counts": []}
        with flow_of(events.schema, spec, some).open() as engine:
            for begin in range(0, EVENTS, 20_000):
                piece = {"events": events.slice(begin, 20_000)}
                if mode == "epoch":
                    out = engine.step(piece, begin // 20_000)
                else:
                    engine.push(piece)
                    last = begin + 20_000 == EVENTS
                    out = engine.advance_to(dd.CLOSED if last else (begin + 20_000) // 1000)
                for output, tables in updates.items():
                    tables.append(out[output])
            left = {output: engine.read(output).num_rows for output in updates}
            verdicts = {each: getattr(engine.verdicts, each) for each in ("total", "pending")}
        found[mode] = {
            output: {
                "updates": sum(each.num_rows for each in tables),
                "checksum": f"{made.checksum(tables):016x}",
                "sum": sum(int(np.sum(each["_diff"].to_numpy())) for each in tables),
                "left": left[output],
            }
            for output, tables in updates.items()
        } | {"verdicts": verdicts}
    return found


def all_answers() -> str:
    return json.dumps({name: answers(name) for name in SHAPES}, indent=1) + "\n"


RECORDED: dict[str, Callable[[], str]] = {"names.txt": names, "help.txt": help_texts, "answers.json": all_answers}


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_as_it_was_recorded(name: str) -> None:
    found, recorded = RECORDED[name](), (GOLDEN / name).read_text()
    assert found == recorded, f"{name} has changed; where that was meant, `make golden` records it anew"


def record() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, made in RECORDED.items():
        (GOLDEN / name).write_text(made())


if __name__ == "__main__":
    record()
