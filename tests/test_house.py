"""Test the rules for code that a program can check: imports, lengths, headers, words, and no names of machines.

import-linter checks the layers that pyproject.toml lists. Each test here reads every file that git tracks or would add,
and names the lines that break its rule. All tests read the same files, so each file is read and parsed only once.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ddflow.plan.verbs.family import load_operators

pytestmark = pytest.mark.together("house")  # one process parses all files

ROOT = Path(__file__).parent.parent
PACKAGES = ("ddflow", "spark_bridge")

ONLY_IN = {"numba": "ddflow/kernels/", "llvmlite": "ddflow/kernels/", "pyspark": "spark_bridge/", "pandas": "nowhere"}
RATCHETS = {
    "files with one importer": 35,
    "crowded folders": 0,
    "functions named by a lone participle": 98,
    "one-word function names in more than five files": 18,
    "functions with more than nine parameters": 8,
    "imports, per cent of statements": 11,
    "errors whose English a test matches": 60,
}
"""Figures of the packages that may only fall: lower a limit when its figure falls."""
ONE_EACH = ("ddflow/kernels", "ddflow/operators", "ddflow/cli")
"""Folders of one kernel, operator or verb a file, which may hold 30 files; others 14."""
CONNECTOR_FILES = {"source", "sink", "config"}
IRREGULAR = re.compile(
    r"begun|bound|brought|built|came|cut|dealt|done|drawn|fed|felt|found|given|gone|grown|heard|held|kept|known|laid|led"
    r"|left|lent|lost|made|meant|met|paid|put|read|run|said|seen|sent|set|shown|spent|split|spread|stood|taken|thought"
    r"|told|understood|went|worn|written"
)
"""Participles that do not end in -ed."""
NOT_PARTICIPLES = {"need", "seed", "feed", "speed", "exceed", "embed"}
PROTOCOL = re.compile(
    r"open|close|read|write|step|compute|apply|commit|main|run|poll|put|finish|schema|copy|update|items|keys|values|get"
)
"""One-word names that mean one protocol wherever they are."""
LONGEST_FILE, MOST_STATEMENTS, LONGEST_FUNCTION, SHORTEST_HEADER = 700, 280, 70, 200

# Written so that this file does not break its own rules.
WORDS = re.compile(
    r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b|\bmark\.(?:s[k]ip|x[f]ail)|\bpytest\.(?:s[k]ip|x[f]ail|import[o]rskip)"
    r"|\b(?:import|from) pick[l]e\b|(?<![.\w])(?:ev[a]l|ex[e]c)\(|\bexcept:|except (?:Base)?Exception:\s+pass\b"
)
# Not where it names the format: a module, an address, a value in quotes.
SYNONYMS = re.compile(
    r"(?<![./\"'`\[])\bdelt[a]s?\b(?! Lake| table| upsert| changelog|[:\"(]| =)|\bchange event[s]?\b", re.IGNORECASE
)
MACHINES = re.compile(r"(?<![\w.])/(?:work|root|opt|home/\w+|Users/\w+|usr/lib|tmp/\w+)/")
HOSTS = re.compile(
    r"pypi\.(?:org|python)|python[h]osted\.|crates\.io/|static\.crates|npmjs\.|yarnpkg\.|anaconda\.(?:org|com)"
    r"|repo1?\.maven|maven\.org|proxy\.golang|rubygems\.|(?:extra-)?index-url[ =]\S*http"
)


@cache
def files() -> tuple[Path, ...]:
    """Every file git knows of or would add."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted({ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()}))


@cache
def text(path: Path) -> str:
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode("utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree."""
    return tuple(ast.walk(tree(path)))


@cache
def inner(path: Path) -> set[ast.AST]:
    """The functions and classes of a file that are defined inside a function, where nobody else can call them."""
    functions = (node for node in nodes(path) if isinstance(node, ast.FunctionDef))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node for outer in functions for node in ast.walk(outer) if node is not outer and isinstance(node, kinds)}


@cache
def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def sources(*folders: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and name(path).split("/")[0] in (folders or PACKAGES)]


@cache
def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> set[str]:
    return {module(source) for source in sources()}


@cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and name of everything imported; ``from a import b`` gives ``a.b`` where that is a module, else ``a``.

    Inside of functions and conditions too.
    """
    return tuple(_imported(path, nodes(path)))


def _imported(path: Path, among: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in among:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if whole in modules() else str(node.module)


def room(target: str) -> str:
    """The room of a module: its first two parts in ddflow, the whole of spark_bridge."""
    return "spark_bridge" if target.startswith("spark_bridge") else ".".join(target.split(".")[:2])


def places(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Where the pattern occurs: file, line and the words found."""
    found = []
    for path in paths:
        for match in pattern.finditer(text(path)):
            line = text(path).count("\n", 0, match.start()) + 1
            found.append(f"{name(path)}:{line}: {match[0]}")
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(sources()) > 10
    assert sources("tests") != []


def test_kernels_import_nothing_of_ddflow_but_kernels() -> None:
    kernels = [path for path in sources() if room(module(path)) == "ddflow.kernels"]
    targets = [(name(path), target) for path in kernels for _, target in imported(path)]
    assert [pair for pair in targets if pair[1].startswith(PACKAGES) and room(pair[1]) != "ddflow.kernels"] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports in functions and for type checks included; the package itself loads its names late."""
    graph = {module(path): {each for _, each in imported(path)} - {module(path), *PACKAGES} for path in sources()}
    for package in PACKAGES:
        del graph[package]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_each_outside_engine_is_imported_in_its_own_room_only() -> None:
    wrong = []
    for path in sources():
        for line, target in imported(path):
            home = ONLY_IN.get(target.split(".")[0])
            if home is not None and not name(path).startswith(home):
                wrong.append(f"{name(path)}:{line}: {target} (only in {home})")
    assert wrong == []


def count_statements(path: Path) -> int:
    """Count the statements of a file, without docstrings and other bare texts."""
    return sum(
        isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in nodes(path)
    )


def test_files_and_functions_are_short() -> None:
    long = [f"{name(path)}: {n} lines" for path in sources() if (n := text(path).count("\n")) > LONGEST_FILE]
    for path in sources():
        if (n := count_statements(path)) > MOST_STATEMENTS:
            long.append(f"{name(path)}: {n} statements")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    long.append(f"{name(path)}:{node.lineno}: {node.name}, {length} lines")
    assert long == []


def is_participle(word: str) -> bool:
    """Say whether a word is a lone participle, such as `found` or `checked`."""
    regular = word.isalpha() and word.endswith("ed") and len(word) > 4 and word not in NOT_PARTICIPLES
    return regular or IRREGULAR.fullmatch(word) is not None


def measure_names(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the figures of `RATCHETS` about functions, each with a place or name that counts in it."""
    homes = defaultdict(set)
    for path in paths:
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            word = node.name.strip("_")
            if "_" not in word and not node.name.startswith("__"):
                homes[word].add(path)
            if IRREGULAR.fullmatch(word) or (
                word.isalpha() and word[4:] and word[-2:] == "ed" and word not in NOT_PARTICIPLES
            ):
                yield "functions named by a lone participle", f"{name(path)}: {node.name}"
            asked = len(node.args.args) + len(node.args.kwonlyargs)
            if asked > 9 and not name(path).startswith(("ddflow/kernels", "ddflow/cli")):
                yield "functions with more than nine parameters", f"{name(path)}:{node.lineno}: {node.name}"
    for word, there in homes.items():
        if len(there) > 5 and not PROTOCOL.fullmatch(word):
            yield "one-word function names in more than five files", word


def measure_files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the figures of `RATCHETS` about files and folders, each with a name that counts in it."""
    within = [path for path in paths if module(path) not in PACKAGES]
    importers = Counter(target for path in within for target in {each for _, each in imported(path)} - {module(path)})
    for path in paths:
        alone = importers[module(path)] == 1
        if alone and not name(path).startswith(ONE_EACH) and path.stem not in CONNECTOR_FILES:
            yield "files with one importer", name(path)
    folders = Counter(name(path.parent) for path in paths if path.name != "__init__.py")
    yield from (("crowded folders", each) for each, held in folders.items() if held > (30 if each in ONE_EACH else 14))
    lines = sum(isinstance(node, ast.Import | ast.ImportFrom) for path in paths for node in nodes(path))
    for each in range(round(100 * lines / sum(map(count_statements, paths)))):
        yield "imports, per cent of statements", str(each)


def measure_matches() -> Iterator[tuple[str, str]]:
    """Yield the places of tests that match words of an error of ddflow: `messages.raises` looks them up instead."""
    ours = set(importlib.import_module("ddflow.errors").__all__)
    for path in (ROOT / "tests").rglob("*.py"):
        for node in nodes(path):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises" and node.args):
                continue
            words = [each.value for each in node.keywords if each.arg == "match"]
            named = set(re.findall(r"\w+", ast.unparse(node.args[0]))) & ours
            if named and words and isinstance(words[0], ast.Constant | ast.JoinedStr | ast.Name | ast.IfExp):
                yield "errors whose English a test matches", f"{name(path)}:{node.lineno}"


def test_figures_of_names_and_files_only_fall() -> None:
    assert (
        is_participle("told") and is_participle("checked") and not is_participle("need") and not is_participle("load")
    )
    counted = {*measure_names(sources()), *measure_files(sources()), *measure_matches()}
    found = Counter(figure for figure, _ in counted)
    worse = {
        f"{figure}: {found[figure]}, at most {limit}": sorted(place for each, place in counted if each == figure)
        for figure, limit in RATCHETS.items()
        if found[figure] > limit
    }
    assert worse == {}


def test_every_module_opens_with_a_header_and_a_longer_one_with_a_real_header() -> None:
    bare = []
    for path in [*sources(), *sources("tests", "bench", "examples", ".ci")]:
        header = ast.get_docstring(tree(path)) or ""
        packaged = name(path).startswith(PACKAGES)
        if not header or (packaged and text(path).count("\n") > 60 and len(header) < SHORTEST_HEADER):
            bare.append(name(path))
    assert bare == []


def test_every_longer_module_shows_an_example_that_runs() -> None:
    silent = [name(path) for path in sources() if text(path).count("\n") > 60 and ">>> " not in text(path)]
    assert silent == []


def test_a_class_name_means_one_thing() -> None:
    where = defaultdict(list)
    for path in sources():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(name(path))
    assert {each: paths for each, paths in where.items() if len(paths) > 1} == {}


def test_nobody_asks_which_operator_it_has() -> None:
    known = {each.__name__ for each in load_operators().values()} | {"Input"}
    asked = []
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                asked += [f"{name(path)}:{node.lineno}: {each}" for each in sorted(named & known)]
    assert asked == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Tests import each other by name, whatever folder they are in."""
    names = Counter(path.stem for path in sources("tests"))
    assert [each for each, times in names.items() if times > 1] == []


def test_kernels_and_public_names_have_docstrings() -> None:
    bare = []
    for path in sources():
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node):
                continue
            kernel = any("kernel" in ast.unparse(decorator) for decorator in node.decorator_list)
            short = (node.end_lineno or node.lineno) - node.lineno < 3
            overload = any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
            if kernel or not (node.name.startswith("_") or short or overload or node in inner(path)):
                bare.append(f"{name(path)}:{node.lineno}: {node.name}")
    assert bare == []


def test_no_words_that_should_not_stay() -> None:
    assert places(WORDS, sources(*PACKAGES, "tests", "bench", "examples", ".ci")) == []


def test_one_word_for_each_idea() -> None:
    prose = [path for path in files() if path.suffix in (".py", ".md") and name(path).split("/")[0] != "tests"]
    assert places(SYNONYMS, prose) == []


def test_nothing_names_a_machine_or_a_package_registry() -> None:
    every = [path for path in files() if path.suffix not in (".parquet", ".png", ".arrow")]
    assert places(MACHINES, every) + places(HOSTS, every) == []


def test_the_patterns_find_what_they_are_for() -> None:
    def shown(pattern: re.Pattern[str], line: str) -> bool:
        return pattern.search(line.replace("~", "")) is not None  # the tilde keeps this file within its own rules

    bad = [
        "# TO~DO: later",
        "@pytest.mark.s~kip",
        "import pick~le",
        "ev~al(x)",
        "ex~cept:",
        "pytest.import~orskip('x')",
    ]
    assert [line for line in bad if not shown(WORDS, line)] == []
    good = ["evaluate(x)", "ast.literal_ev~al(x)", "frame.ev~al(x)", "except ValueError:", "hackney"]
    assert [line for line in good if shown(WORDS, line)] == []
    assert shown(MACHINES, "see /ho~me/ann/notes") and not shown(MACHINES, "https://example.com/home/ann/")
    assert shown(HOSTS, "https://py~pi.org/simple")
    assert shown(SYNONYMS, "a del~ta of one") and not shown(SYNONYMS, "timedelta(1)")
    assert not any(shown(SYNONYMS, each) for each in ("a.del~ta", '"del~ta"', "`del~ta`", "del~ta:/lake"))
