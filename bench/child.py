"""A fresh process for every measurement: a question goes in as JSON, an answer comes out as JSON.

Invariant: the process has run nothing before, holds every library to the threads it was given, and imports the ddflow
of the checkout the bench stands in. A process that has already run a contender gives the next one its allocator's warm
pages, and its peak memory; and libraries read their number of threads once, when imported.

>>> environment(2)["POLARS_MAX_THREADS"], environment(2)["OMP_NUM_THREADS"]
('2', '2')
>>> answer(["--child", json.dumps({"a": 1})], dict)  # what the child does with it
{"a": 1}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Broken(RuntimeError):
    """A child did not finish; the message is what it said."""


def environment(threads: int) -> dict[str, str]:
    """The variables that hold every library to ``threads`` threads (they are read when it is imported), and ours first.

    The checkout the bench stands in comes first on the path, so that no other ddflow is measured by mistake.
    """
    names = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONPATH": path}


def ask(program: str, question: dict[str, Any], threads: int = 1, timeout: float = 3600) -> Any:
    """Run a bench file as a child with ``question`` and return its answer; Broken when it fails or takes too long."""
    command = [sys.executable, str(Path(program).resolve()), "--child", json.dumps(question)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment(threads), timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise Broken(f"no answer within {timeout:g} s") from late
    if done.returncode:
        raise Broken(done.stderr.strip() or f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def is_child(arguments: Sequence[str]) -> bool:
    """Whether a program was started by `ask`."""
    return arguments[:1] == ["--child"]


def answer(arguments: Sequence[str], run: Callable[..., Any]) -> None:
    """The child's side: call ``run`` with the fields of the question, and print what it gives."""
    print(json.dumps(run(**json.loads(arguments[1]))))
