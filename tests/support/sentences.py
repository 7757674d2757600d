"""Split docstrings, comments, pages, notebooks and messages into sentences, and count patterns that are hard to read.

`PATTERNS` has a limit for each pattern, in per cent of all sentences. The limits were chosen by counting the same
patterns in polars, pandas, PySpark, numba and other projects. Code, names in backticks, headings, and table cells with
few words do not count as sentences.

>>> [*split("Read it.  What is read is kept.", 4)]
['What is read is kept.']
>>> [name for name, pattern, _ in PATTERNS if pattern.search("What is read is kept.")]
['opens with What, Whose or Who']
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

WORDS, CELL_WORDS = 4, 8
"""The minimum number of words of a sentence in text, and the minimum in a cell of a table."""
PATTERNS = [
    ("opens with What, Whose or Who", re.compile(r"^(?:What|Whatever|Whose|Who|Whoever)\b(?!.*\?$)"), 0.4),
    ("opens with Of, Those, As, Behind or Beside", re.compile(r"^(?:Of|Those|As|Behind|Beside|Beneath)\b"), 0.9),
    (
        "has two relative clauses",
        re.compile(r"\b(?:that|which|whose|who|whom|what)\b[^.;]*\b(?:that|which|whose|whom|what)\b"),
        4.0,
    ),
    (
        "has a preposition before which, what or whom",
        re.compile(r"\b(?:of|in|by|from|to|at|for|with|on) (?:which|what|whom|whose)\b"),
        1.0,
    ),
    (
        "says stands, lies, is told, is given, nobody",
        re.compile(
            r"\b(?:stands?|lies|(?:is|are|was|were) (?:to[l]d|given|there|gone|made anew)|goes on|comes? in|anew|nobody"
            r"|somebody|who[e]ver|and no more|all the same|neither do|nor does)\b"
        ),
        1.5,
    ),
    (
        "says as it is, so does",
        re.compile(
            r"\b(?:as (?:it|they|that|those|these) (?:is|are|was|were|has|have|does|do|did)"
            r"|so (?:does|do|is|are|did|has) (?!not))\b"
        ),
        0.4,
    ),
    (
        "says where for if, or who reads for users",
        re.compile(
            r"\b(?:where (?:it|there|they|nobody|none|no|a|one|that) "
            r"|who (?:asks|reads|wants|needs|has|gives|writes|opens))"
        ),
        1.0,
    ),
    ("says that of, those of, of its own", re.compile(r"\b(?:(?:that|those|ones?) of|of (?:its|their) own)\b"), 1.2),
]
CODE = [
    re.compile(pattern, re.MULTILINE | re.DOTALL)
    for pattern in (r"^ *```.*?^ *```", r"^ *>>>.*?(?:\n\s*\n|\Z)", r"\A---\n.*?\n---$")
]
NO_PROSE = re.compile(r"^(?: {4,}|\t|[#:|]).*$", re.MULTILINE)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
NAME = re.compile(r"``[^`]*``|`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def split(text: str, words: int) -> Iterator[str]:
    """Yield the sentences of a paragraph that have at least this many words."""
    plain = " ".join(LINK.sub(r"\1", NAME.sub("X", text)).replace("**", "").split())
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", plain):
        if len(sentence.split()) >= words and re.match(r"[A-Z\"']", sentence):
            yield sentence.strip()


def split_page(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text or a docstring, including the sentences in lists and tables."""
    for pattern in CODE:
        text = pattern.sub("\n\n", text)
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        for cell in re.split(r"(?<!\\)\|", row):
            yield from split(cell, CELL_WORDS)
    for paragraph in re.split(r"\n\s*\n", ITEM.sub("\n\n", NO_PROSE.sub("", text))):
        yield from split(paragraph, WORDS)


def list_docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module and of its classes, functions and values.

    Yield the comments, too; the lines of a comment block are joined.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    for _, block in groupby(enumerate(comments), lambda pair: pair[1].start[0] - pair[0]):
        yield " ".join(token.string.lstrip("# ").rstrip() for _, token in block)


def list_sentences(path: Path) -> set[str]:
    """List the sentences of a file.

    The file is Python, Markdown, a notebook, or a text with one message on each line.
    """
    source = path.read_text("utf-8")
    match path.suffix:
        case ".py":
            texts = list_docstrings(source)
        case ".ipynb":
            cells = json.loads(source)["cells"]
            texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        case ".txt":
            texts = (part[:1].upper() + part[1:] for line in source.splitlines() for part in re.split("[:;] ", line))
        case _:
            texts = iter([source])
    return {sentence for text in texts for sentence in split_page(text)}
