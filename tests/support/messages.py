"""Expect a ddflow error with its fields and a reviewed text.

`raises` replaces `pytest.raises`. The function compares the given fields of the error. The function also looks up the
text of the error in `tests/golden/messages.txt`, under the name of the test file. Placeholders replace paths, ports,
digests and other values that vary. ``make messages`` records all texts again; read the diff.

>>> steady("read /tmp/pytest-of-me/pytest-1/popen-gw0/test_x0/a.csv in 3.5ms: PID 71")
'read TMP/a.csv in TIME: PID N'
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from chance import RECORD

from ddflow.errors import DdflowError

E = TypeVar("E", bound=DdflowError)
ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "golden" / "messages.txt"
RECORDED: Final = ROOT / "tests" / "golden" / ".messages"
"""Folder in which the processes of a recording run write error texts."""
NOTHING: Final = 5
"""Exit code of pytest if it finds no test."""
_seen: list[list[str]] = []
HEAD: Final = "Texts of errors by test file.  make messages records them.\n"
_VARYING: Final = (
    (re.compile(re.escape(str(ROOT))), "ROOT"),  # first: the checkout may be in a temporary folder
    (re.compile(r"(?:/dev/shm|/tmp)/pytest-of-[^/]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\"),;:\]]+"), "TMP"),
    (re.compile(r"(?:/dev/shm|/tmp|/var/folders)/[^\s'\"),;:\]]+"), "TMP"),
    (re.compile(r"\b(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?"), "HOST"),
    (re.compile(r"\bport \d+"), "port PORT"),
    (re.compile(r"\b0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b[0-9a-f]{16}(?=-\d+\b)"), "DIGEST"),  # a file of a state: it may have no letter but e, or none
    (re.compile(r"(?<=ddflow-DIGEST-)\d+(?=\.arrow)"), "N"),
    (re.compile(r"(?:\b|(?<=mockCluster))(?!\d+(?:e\d*)?\b)(?=[0-9a-f]*\d)[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(r"\bmockCluster[0-9a-f]+"), "mockClusterDIGEST"),
    (re.compile(r"(?<=id is )[\w+/-]{22}, but was [\w+/-]{22}"), "ID, but was ID"),
    (re.compile(r"\bbucket-\d+\b"), "bucket-N"),
    (re.compile(r"(?<=HOST/t)\d+\b|(?<= of t)\d+(?=/\d)"), "N"),
    (re.compile(r"(?<=HOST/)(test_\w*?)\d+(?=[:,; ])"), r"\1N"),
    (re.compile(r"(?<= in )\d[\d.]*(?:ns|µs|ms|s)\b"), "TIME"),
    (re.compile(r"(?<=@)\d{9,}\.\d+"), "TIME"),
    (re.compile(r"\boid is \d+, but was \d+"), "oid is N, but was N"),
    (re.compile(r"\b(PID|process) \d+"), r"\1 N"),
    (re.compile(r"<\?xml.*?(?:</Error>|\.\.\.)", re.DOTALL), "XML"),
    (re.compile(r"\b[\d,]+(?= bytes are free)"), "N"),
    (re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{6,8}\b"), "LSN"),
    (re.compile(r"\bgw\d+\b"), "WORKER"),
    (re.compile(r'(?<=\.py", line )\d+|(?<=\.py \()\d+'), "N"),
    (re.compile(r"/[^\s'\"]*/bin/python[\d.]*"), "PYTHON"),
)


@contextmanager
def raises(kind: type[E] | tuple[type[E], ...], **fields: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of a class, with these fields and a text of the golden file."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    found = {name: getattr(error, name) for name in fields}
    assert found == fields, f"{found} of: {error}"
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    text = f"{type(error).__name__}: {steady(str(error))}"
    if RECORD:
        _seen.append([test, text])
        with suppress(OSError):  # a test may have filled the disk; the next error is written with this one
            RECORDED.mkdir(exist_ok=True)
            with (RECORDED / f"{os.getpid()}.jsonl").open("a") as file:
                file.write("".join(json.dumps(each) + "\n" for each in _seen))
            _seen.clear()
    else:
        assert text in golden().get(test, ()), f"not in {GOLDEN.relative_to(ROOT)} (make messages):\n{text}"


def steady(text: str) -> str:
    """Return a text on one line, with placeholders for values that vary between runs."""
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text.replace("\\", "\\\\").replace("\n", "\\n")


@cache
def golden() -> dict[str, set[str]]:
    """Return the recorded texts by test file."""
    texts, test = defaultdict[str, set[str]](set), ""
    for line in GOLDEN.read_text().splitlines() if GOLDEN.exists() else ():
        if line.startswith("  "):
            texts[test].add(line.removeprefix("  "))
        else:
            test = line
    return texts


def collect(whole: bool) -> None:
    """Write the recorded texts to the golden file.

    If ``whole``, replace the contents of the file; otherwise add to its contents.
    """
    texts = defaultdict[str, set[str]](set) if whole else golden()
    for file in RECORDED.glob("*.jsonl"):
        for test, text in map(json.loads, file.read_text().splitlines()):
            texts[test].add(text)
        file.unlink()
    RECORDED.rmdir()
    lines = [line for test, each in sorted(texts.items()) for line in (test, *(f"  {text}" for text in sorted(each)))]
    GOLDEN.write_text("\n".join([HEAD, *lines]) + "\n")


if __name__ == "__main__":
    every = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "import raises" in path.read_text()]
    run = [sys.executable, "-m", "pytest", "--numprocesses=2", *(sys.argv[1:] or every), "-m"]
    env = os.environ | {"DDFLOW_MESSAGES": "1"}
    parts = [subprocess.Popen([*run, f"{part} and not soak"], cwd=ROOT, env=env) for part in ("spark", "not spark")]
    codes = [part.wait() for part in parts]
    collect(whole=not sys.argv[1:])
    raise SystemExit(max(code for code in codes if code != NOTHING) if {*codes} != {NOTHING} else 0)
