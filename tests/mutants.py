"""Make random mutants of the code and record which tests kill them (``make mutants``).

``mutants.jsonl`` has one row per mutant: file, line, the lines before and after, the tests that ran, and the outcome.
The first run draws the mutants from one seed: random statements of all packages, a quarter of them in kernels. A row
with an outcome is not run again. Mutants live in a scratch copy with its own kernel cache; the checkout is never
edited. The note at a survivor (``equivalent``) is written by hand.

    make mutants                                   # draw, map and run mutants without an outcome
    .venv/bin/python tests/mutants.py --rest       # run the other tests on survivors
    .venv/bin/python tests/mutants.py --again 17   # run these again, after a new test
    .venv/bin/python tests/mutants.py --check      # check that the killing tests pass on unchanged code
    .venv/bin/python tests/mutants.py --summary    # print the table by package, for docs/testing.md
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("mutants.jsonl")
SCRATCH = Path(os.environ.get("DDFLOW_MUTANTS", Path(tempfile.gettempdir()) / "ddflow-mutants"))
SEED, MUTANTS, OF_KERNELS = 14, 120, 30
FIRST, REST = 15.0, 600.0
"""Maximum seconds of a mutant's tests by their mapped times: the first tests, and the others."""

FLIPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
Row = dict[str, Any]
_seen: set[tuple[int, str]] = set()


# Changes of a node


def changes(node: ast.AST, kernel: bool, often: frozenset[str]) -> Iterator[ast.AST]:
    """Yield the changes of a node; ``often`` are names that are bound more than once."""
    match node:
        case ast.Compare(ops=[one]) | ast.BoolOp(op=one) | ast.BinOp(op=one) if type(one) in FLIPS:
            if not any(isinstance(each, ast.JoinedStr | ast.Constant) and is_text(each) for each in ast.walk(node)):
                yield altered(
                    node,
                    **{"ops": [FLIPS[type(one)]()]} if isinstance(node, ast.Compare) else {"op": FLIPS[type(one)]()},
                )
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.If() | ast.While() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield altered(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        case ast.Call(func=ast.Name(id=name)) if name in NAMES and hasattr(builtins, name):
            yield altered(node, func=ast.Name(NAMES[name]))
        case ast.Slice(lower=lower, upper=upper):
            for name, end in (("lower", lower), ("upper", upper)):
                if end is not None and not isinstance(end, ast.Constant):
                    yield altered(node, **{name: ast.BinOp(end, ast.Add(), ast.Constant(1))})
        case ast.Subscript(slice=ast.Name() | ast.BinOp() as index) if kernel:
            yield altered(node, slice=ast.BinOp(index, ast.Add(), ast.Constant(1)))
        case ast.Return(value=ast.Tuple() as value):
            yield ast.Return(ast.Tuple(value.elts[::-1]))
        case ast.Return(value=ast.Call(args=[first, *_])) if not isinstance(first, ast.Starred | ast.Constant):
            yield ast.Return(first)
        case ast.Return(value=ast.Name() | ast.Call() | ast.Subscript() | ast.Attribute()):
            yield ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.Assign(targets=[ast.Name() | ast.Tuple() as target]) if not names(target) <= often:
            pass  # without it the name would be unknown, which any test notices
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign():
            yield ast.Pass()


def altered(node: Any, **fields: Any) -> Any:
    """Copy a node and set some fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def names(node: ast.AST) -> set[str]:
    """Return the names that a node binds."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def statements(body: list[ast.stmt], often: frozenset[str] | None = None) -> Iterator[tuple[ast.stmt, Any]]:
    """Yield every statement with an effect, and the names that its function binds more than once (None outside)."""
    for node in body:
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        public = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise) or checking or public:
            continue
        yield node, often
        within = often
        if isinstance(node, ast.FunctionDef):
            bound = Counter(name for each in ast.walk(node) if isinstance(each, ast.stmt) for name in names_of(each))
            within = frozenset(name for name, times in bound.items() if times > 1)
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, []), within)
        for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from statements(part.body, within)


def names_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement itself binds."""
    targets = [*getattr(node, "targets", []), *([node.target] if hasattr(node, "target") else [])]
    return {name for target in targets for name in names(target)}


def places(statement: ast.stmt, often: frozenset[str] | None, kernel: bool) -> list[tuple[ast.AST, ast.AST]]:
    """Return pairs of node and change in one statement, without its blocks, annotations and texts."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return []
    found: list[tuple[ast.AST, ast.AST]] = []
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if node is not statement and isinstance(node, ast.stmt | ast.match_case | ast.ExceptHandler | ast.JoinedStr):
            continue
        if often is not None or not isinstance(node, ast.Assign | ast.Expr):
            found += [(node, other) for other in changes(node, kernel, often or frozenset())]
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "keywords" if is_log(node) else ""):
                waiting += [
                    each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)
                ]
    return found


def is_log(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("typer.Option", "LOG."))


def replaced(text: str, node: Any, other: ast.AST) -> tuple[int, str, str]:
    """Return the line of a changed node, and its whole lines before and after the change."""
    lines = text.splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno
    before = "".join(lines[first:last]).encode()
    begin, end = node.col_offset, len(before) - len(lines[last - 1].encode()) + node.end_col_offset
    if isinstance(other, ast.If | ast.While):  # only its test changes
        return replaced(text, node.test, other.test)
    said = ast.unparse(ast.fix_missing_locations(ast.copy_location(other, node)))
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp):
        said = f"({said})"
    return node.lineno, before.decode(), (before[:begin] + said.encode() + before[end:]).decode()


def draw() -> list[Row]:
    """Draw the seed's mutants: random statements with one random change each."""
    random = Random(SEED)
    every: dict[bool, list[Any]] = {True: [], False: []}
    for path in sorted([*(ROOT / "ddflow").rglob("*.py"), *(ROOT / "spark_bridge").rglob("*.py")]):
        kernel = "kernels" in path.parts
        for statement, often in statements(ast.parse(path.read_text()).body):
            every[kernel].append((path, statement, often))
    rows: list[Row] = []
    for kernel, wanted in ((True, OF_KERNELS), (False, MUTANTS - OF_KERNELS)):
        random.shuffle(every[kernel])
        most = len(rows) + wanted
        for path, statement, often in every[kernel]:
            choices = places(statement, often, kernel)
            if choices and len(rows) < most:
                line, before, after = replaced(path.read_text(), *random.choice(choices))
                if before != after and parses(path.read_text().replace(before, after)):
                    name = path.relative_to(ROOT).as_posix()
                    rows.append({"id": len(rows), "file": name, "line": line, "before": before, "after": after})
    return rows


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


# Scratch copy


def fresh() -> Path:
    """Copy the current tree, with its own git repository for tests that use git."""
    tree = SCRATCH / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=m", "-c", "user.email=m@m", "commit", "-qm", "copy"],
    ):
        subprocess.run(["git", *command], cwd=tree, check=True)
    return tree


def position(row: Row, text: str) -> int | None:
    """Return the offset of a mutant's lines nearest to its line number, or None if the file lacks them."""
    found = [
        each.start() for each in re.finditer(re.escape(row["before"]), text) if text[: each.start()][-1:] in ("", "\n")
    ]
    return min(found, key=lambda at: abs(text.count("\n", 0, at) + 1 - row["line"]), default=None)


def run_tests(tree: Path, words: list[str], limit: float, **more: str) -> tuple[str, str]:
    """Run pytest; return ``passed``, ``failed``, ``hung`` or ``nothing ran``, and its output."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}", "DDFLOW_SEED": str(SEED), **more}
    environment["DDFLOW_CACHE_DIR"] = str(SCRATCH / "cache")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(tree / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *words]
    with open(SCRATCH / "said", "w+") as said:
        done = subprocess.Popen(command, cwd=tree, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            code = done.wait(limit)
        except subprocess.TimeoutExpired:
            code = -1
        finally:  # also kills processes that tests started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)
            done.wait()
        said.seek(0)
        return {0: "passed", -1: "hung", 5: "nothing ran"}.get(code, "failed"), said.read()


# Map of tests to mutants


def hit(number: int) -> None:
    """Record that the current test reached this mutant; processes that a test starts count for it."""
    folder = os.environ.get("DDFLOW_MUTANTS_MAP")
    if folder is None:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST") if "pyspark.daemon" not in sys.modules else None
    if test is None:
        test = (Path(folder) / "now").read_text()
    if (number, test) not in _seen:
        _seen.add((number, test))
        with open(Path(folder) / "hits", "a") as hits:
            hits.write(f"{number} {test.rsplit(' (')[0]}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write the current test to a file, for processes that other tests started."""
    (Path(os.environ["DDFLOW_MUTANTS_MAP"]) / "now").write_text(nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Record the duration of each test."""
    with open(Path(os.environ["DDFLOW_MUTANTS_MAP"]) / "times", "a") as times:
        took = min(report.duration, 5) if report.failed else report.duration  # a probe broke it
        times.write(f"{took:.4f} {report.nodeid}\n")


def probed(rows: list[Row], tree: Path, compiled: bool) -> None:
    """Put a probe before each statement to change; into kernels only if nothing is compiled."""
    for name in {row["file"] for row in rows}:
        text = (tree / name).read_text()
        parsed, lines, probes = ast.parse(text), text.splitlines(keepends=True), []
        for row in (row for row in rows if row["file"] == name):
            at = position(row, text)
            line = text.count("\n", 0, at) + 1 if at is not None else 0
            around = [
                n for n in ast.walk(parsed) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)
            ]
            kernel = any("kernel" in ast.unparse(d) for n in around for d in getattr(n, "decorator_list", []))
            kernel |= "kernels/" in name and sum(isinstance(n, ast.FunctionDef) for n in around) > 1  # inside a user's
            starts = [n for n in around if not lines[n.lineno - 1].lstrip().startswith(("elif", "@"))]
            if at is not None and starts and not (kernel and compiled):
                start = max(starts, key=lambda n: (n.lineno, n.col_offset))
                probes.append((start.lineno - 1, f"{' ' * start.col_offset}import mutants; mutants.hit({row['id']})\n"))
        for index, probe in sorted(probes, reverse=True):
            lines.insert(index, probe)
        (tree / name).write_text("".join(lines))


def mapped(rows: list[Row]) -> tuple[dict[int, list[str]], dict[str, float]]:
    """Return the tests that reach each mutant and the seconds of each test; measured once per scratch folder.

    A probe before each changed statement notes the running test in one run of the suite. Compiled kernels cannot call a
    probe. So a second run of the kernel tests without the compiler notes theirs.
    """
    folder = SCRATCH / "map"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "now").write_text("an import")
        for compiled in (False, True):
            tree = fresh()
            probed(rows, tree, compiled)
            words = ["-p", "mutants", "-m", "not soak"] if compiled else ["-p", "mutants", *kernel_tests()]
            switch = {} if compiled else {"NUMBA_DISABLE_JIT": "1", "DDFLOW_EXAMPLES": "0.15"}
            print(run_tests(tree, words, 2 * 3600, DDFLOW_MUTANTS_MAP=str(folder), **switch)[1][-2000:], flush=True)
        (folder / "done").touch()
    tests: dict[int, list[str]] = defaultdict(list)
    for line in (folder / "hits").read_text().splitlines():
        number, _, test = line.partition(" ")
        if "test_house" not in test:
            tests[int(number)].append(test)
    times: Counter[str] = Counter()
    for line in (folder / "times").read_text().splitlines():
        took, _, test = line.partition(" ")
        times[test] += float(took)
    return {row["id"]: sorted(set(tests[row["id"]]) & times.keys()) or importing(row, times) for row in rows}, times


def importing(row: Row, times: dict[str, float]) -> list[str]:
    """Return the tests of files that name the module: for constants and fields, only an import reaches the mutant."""
    *room, stem = Path(row["file"]).with_suffix("").parts
    named = re.compile(rf"{re.escape('.'.join(room))}(?:\.| import .*\b){stem}\b")
    files = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py") if named.search(path.read_text())
    }
    return sorted(test for test in times if test.split("::")[0] in files | {row["file"]})


def kernel_tests() -> list[str]:
    every = (ROOT / "tests").rglob("test_*.py")
    marked = [path.relative_to(ROOT).as_posix() for path in every if "mark.kernels" in path.read_text()]
    return ["-m", "kernels and not soak", *sorted(marked), "ddflow/kernels"]


# Run of one mutant


def changed(path: Path, text: str) -> None:
    """Write a file and delete its bytecode: Python misses a change of equal length within a second."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def order(row: Row, tests: list[str], times: dict[str, float]) -> list[str]:
    """Sort the tests: first those with a name like the file's, then by duration."""
    words = set(Path(row["file"]).with_suffix("").parts[1:])
    near = {test: any(word in test.split("::")[0] for word in words) for test in tests}
    return sorted(tests, key=lambda test: (not near[test], times[test], test))


def budgeted(tests: list[str], times: dict[str, float], seconds: float) -> list[str]:
    """Return the first tests that fit into so many seconds, at least one."""
    taken, total = [], 0.0
    for test in tests:
        if total + times[test] <= seconds or not taken:
            taken.append(test)
            total += times[test]
    return taken


def resolve(row: Row, tree: Path, tests: list[str], times: dict[str, float], rest: bool) -> None:
    """Run the tests of one mutant and write the outcome into its row.

    The tests that reach it run first for `FIRST` seconds. With ``rest``, the other tests that reach it run. For kernels
    that is every test without Spark, because their map is incomplete. A run that hangs is a kill.
    """
    path = tree / row["file"]
    text = path.read_text()
    at = position(row, text)
    if at is None:
        row["outcome"] = "gone: the code is another"
        return
    changed(path, text[:at] + row["after"] + text[at + len(row["before"]) :])
    ordered = order(row, tests, times)
    first = budgeted(ordered, times, FIRST)
    chosen = budgeted([test for test in ordered if test not in set(first)], times, REST) if rest else first
    kernel = row["file"].startswith("ddflow/kernels/")
    try:
        seconds, outcome, said, began = sum(times[test] for test in chosen), "nothing ran", "", time.monotonic()
        switches = [{"NUMBA_DISABLE_JIT": "1", "DDFLOW_EXAMPLES": "0.15"}, {}] if kernel and not rest else [{}]
        for switch in switches:  # without the compiler first, because these tests start at once
            words = kernel_tests() if switch else ["-m", "not soak and not spark"] if kernel and rest else chosen
            if outcome in ("passed", "nothing ran") and words:
                (SCRATCH / "words").write_text("\n".join(words))
                limit = 1800 if kernel and rest else 120 + 5 * seconds
                outcome, said = run_tests(tree, ["-x", f"@{SCRATCH / 'words'}"], limit, **switch)
        row["ran"] = f"{'the rest: ' if rest else ''}{len(chosen)} tests, {time.monotonic() - began:.0f} s"
        killer = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", said, re.MULTILINE)
        by = "a run that hung" if outcome == "hung" else killer[1] if killer else said.strip()[-160:]
        row["outcome"] = "survived" if outcome in ("passed", "nothing ran") else f"killed by {by}"
    finally:
        changed(path, text)
        shutil.rmtree(tree / ".hypothesis", ignore_errors=True)


# Table of mutants


def saved(rows: list[Row]) -> None:
    TABLE.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def summary(rows: list[Row]) -> str:
    """Format a table by package: mutants, killed, survived, equivalent."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        parts = Path(row["file"]).parts
        room = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        outcome = "equivalent" if "equivalent" in row else str(row.get("outcome", "not run")).split()[0]
        for key in (room, "together"):
            counts[key][outcome] += 1
    kinds = ("killed", "survived", "equivalent", "not")
    lines = ["| room | mutants | killed | survived | equivalent | not run |", "|---|---|---|---|---|---|"]
    for key in [*sorted(counts.keys() - {"together"}), "together"]:
        figures = " | ".join(str(counts[key][kind]) for kind in kinds)
        lines.append(f"| {key} | {counts[key].total()} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description="random mutants, and which tests kill them")
    asked.add_argument("--rest", action="store_true", help="give survivors to the other tests that reach them")
    asked.add_argument("--again", type=int, nargs="+", default=[], metavar="ID", help="run these once more")
    asked.add_argument("--check", action="store_true", help="run the tests that killed on code that is not changed")
    asked.add_argument("--summary", action="store_true", help="print the table by room")
    options = asked.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if not TABLE.exists():
        saved(draw())
    rows: list[Row] = [json.loads(line) for line in TABLE.read_text().splitlines()]
    if options.check:
        killers = {row["outcome"].removeprefix("killed by ") for row in rows if "::" in row.get("outcome", "")}
        (SCRATCH / "words").write_text("\n".join(sorted(killers)))
        print(run_tests(fresh(), [f"@{SCRATCH / 'words'}"], 3600)[1][-2000:])
    elif not options.summary:
        reach, times = mapped(rows)
        tree = fresh()
        for row in rows:
            outcome = row.get("outcome")
            survived = outcome == "survived" and "equivalent" not in row and "rest" not in row["ran"]
            if row["id"] in options.again or (survived if options.rest else outcome is None):
                resolve(row, tree, reach.get(row["id"], []), times, options.rest and survived)
                print(row["id"], f"{row['file']}:{row['line']}", row["ran"], row["outcome"], flush=True)
                saved(rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
