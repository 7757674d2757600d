"""Test the documentation: links lead to a heading, named files exist, sentences are short, and some words are absent.

`codespell` checks the spelling (``make lint``). The tests remove code before they check a text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from sentences import PATTERNS, list_sentences

import ddflow
import spark_bridge
from ddflow.connectors import formats, sinks, sources

ROOT = Path(__file__).parent.parent
PAGES = [
    *(page for page in ROOT.glob("docs/**/*.md") if not {"_build", "_outside"} & {*page.parts}),
    *(page for pattern in ("*.md", "examples/**/*.md", "notebooks/*.ipynb") for page in ROOT.glob(pattern)),
]
REFERENCE = {
    *(f"docs/{name}.md" for name in ("cli", "design", "formats", "performance", "reliability", "semantics", "spark")),
    *("docs/sql.md", "docs/testing.md", "CHANGELOG.md"),
}
"""Pages that list: their sentences may be long."""
LONGEST = 40
WORDS = re.compile(r"\b(?:who[e]ver|to[l]d|let g[o])\b", re.IGNORECASE)
BLOCK = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`([a-z_]+(?:/[\w*-]+)+)(\.[a-z_]\w*)?`")
"""A file of the repository, or of the package, in a text; with a name in it, or with its ending."""
WHERE = (ROOT, ROOT / "ddflow", ROOT / "ddflow" / "connectors")
FOREIGN = ".rs"
"""Of files of other projects."""
ENDINGS = {".py", ".md", ".json", ".jsonl", ".sql", ".toml", ".ipynb", ".yaml", ".txt", ".svg"}


@cache
def text(page: Path) -> str:
    """A page without its blocks of code."""
    found = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(found)["cells"]
        found = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return BLOCK.sub("", found)


@cache
def anchors(page: Path) -> set[str]:
    """What a link may name in a page: headings as a forge spells them."""
    heads = (LINK.sub("]", head) for head in re.findall(r"^#+ (.+)$", text(page), re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def sentences(page: Path) -> list[str]:
    """Those of paragraphs and lists; tables, titles and code are none."""
    plain = INLINE.sub("code", LINK.sub("]", text(page)))
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", plain)
    lines = ([line for line in part.splitlines() if not re.match(r"\s*[|#:]| {4}", line)] for part in parts)
    return [*chain.from_iterable(re.split(r"(?<=[.!?])\s+", " ".join(" ".join(part).split())) for part in lines)]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_link_leads_to_a_file_and_a_heading_of_it() -> None:
    lost, seen = [], 0
    for page in PAGES:
        for to in LINK.findall(INLINE.sub("", text(page))):
            path, _, part = to.partition("#")
            if "://" in to or to.startswith("mailto:"):
                continue
            seen += 1
            target = page.parent / path if path else page
            found = target.exists() and (not part or target.suffix not in (".md", ".ipynb") or part in anchors(target))
            lost += [] if found else [f"{name(page)}: {to}"]
    assert len(PAGES) > 60 and seen > 200 and lost == []


def test_every_file_that_is_named_is_there() -> None:
    """``trace/batch`` may stand for ``ddflow/trace/batch.py``, and ``trace/batch.Batch`` for a name in it."""
    tops = {path.name for folder in (ROOT, ROOT / "ddflow") for path in folder.iterdir() if path.is_dir()}
    lost, seen = [], 0
    for page in PAGES:
        for path, rest in NAMED.findall(text(page)):
            if path.split("/")[0] not in tops or rest == FOREIGN:
                continue
            seen += 1
            ending = rest if rest in ENDINGS else ""
            found = [*chain.from_iterable(where.glob(path + end) for where in WHERE for end in (ending, ".py"))]
            if not found or (rest and not ending and not any(rest[1:] in each.read_text("utf-8") for each in found)):
                lost.append(f"{name(page)}: {path}{rest}")
    assert seen > 100 and lost == []


def test_sentences_are_short_where_they_explain() -> None:
    long = [
        f"{name(page)}: {words} words: {sentence[:60]}"
        for page in PAGES
        if name(page) not in REFERENCE
        for sentence in sentences(page)
        if (words := len(sentence.split())) > LONGEST
    ]
    assert long == []


def test_guides_speak_to_their_reader() -> None:
    guides = [*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/tutorials/*.md")]
    silent = [name(page) for page in guides if not re.search(r"\byour?\b", text(page), re.IGNORECASE)]
    assert len(guides) > 5 and silent == []


def reference() -> Iterator[tuple[str, str]]:
    """The public names, and members of classes, with their docstrings."""
    for module in (ddflow, spark_bridge, ddflow.errors, sources, sinks, formats):
        for each in module.__all__:
            of = getattr(module, each)
            members = {k: v for k, v in vars(of).items() if k[0] != "_"} if inspect.isclass(of) else {}
            for member, what in {"": of, **members}.items():
                yield f"{module.__name__}.{each} {member}", inspect.getdoc(what) or ""


def test_words_that_are_ours_alone_are_not_used() -> None:
    texts = [*((name(page), text(page)) for page in PAGES), *reference()]
    found = [f"{where}: {word}" for where, written in texts for word in WORDS.findall(INLINE.sub("", written))]
    assert len(texts) > 300 and found == []


def test_english_is_as_plain_as_in_other_projects() -> None:
    """Share of sentences with each pattern of `sentences`, over code, pages, notebooks, READMEs and messages."""
    code = [
        path
        for each in ("ddflow", "spark_bridge", "bench", "examples", "docs")
        for path in ROOT.glob(f"{each}/**/*.py")
    ]
    folders = [path for each in ("ddflow", "spark_bridge") for path in ROOT.glob(f"{each}/**/README.md")]
    read = [*code, *folders, *PAGES, ROOT / "tests" / "README.md", ROOT / "tests" / "golden" / "messages.txt"]
    every = [sentence for path in read if "_build" not in path.parts for sentence in list_sentences(path)]
    assert len(every) > 15_000
    worse = {}
    for what, pattern, most in PATTERNS:
        found = sorted(sentence for sentence in every if pattern.search(sentence))
        if 100 * len(found) > most * len(every):
            worse[f"{what}: {100 * len(found) / len(every):.2f} %, at most {most}"] = found[:20]
    assert worse == {}


def list_folders() -> list[Path]:
    """The folders that have a README: of the package, of the Spark bridge, and of the tests as a whole."""
    files = (path for each in ("ddflow", "spark_bridge") for path in (ROOT / each).rglob("*.py"))
    return [*sorted({path.parent for path in files}), ROOT / "tests"]


def test_each_folder_has_a_readme_that_names_its_files_once() -> None:
    wrong = []
    for folder in list_folders():
        page = folder / "README.md"
        if not page.exists():
            wrong.append(f"{name(folder)}: no README.md")
            continue
        written = page.read_text("utf-8")
        head, _, rest = written.partition("## Files, in reading order\n")
        listed, _, after = rest.partition("\n## ")
        named = re.findall(r"^- `([\w.]+)/?`", listed, re.MULTILINE)
        files = {path.name for path in folder.glob("*.py") if not path.name.startswith(("__init__", "test_"))}
        folders = {each.name for each in folder.iterdir() if each.is_dir() and each.name[0] not in "._"}
        wrong += [f"{name(page)}: {each}" for each in {*named} ^ (files | folders)]
        wrong += [f"{name(page)}: {each} twice" for each in {*named} if named.count(each) > 1]
        for path in re.findall(r"`([\w.]+(?:/[\w.]*)*(?:/|\.py|\.md|\.toml))`", head + after):
            if not any((where / path).exists() for where in (ROOT, folder)):
                wrong.append(f"{name(page)}: {path} does not exist")
        if written.count("\n") > 40:
            wrong.append(f"{name(page)}: more than 40 lines")
    assert len(list_folders()) > 30 and wrong == []
