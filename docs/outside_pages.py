"""Make pages of the site from files outside of ``docs``, and set the links to and from these pages.

A link to a Markdown file or a notebook of the repository leads to the page of this file under ``_outside``. A link to
a file that the site does not show, such as a test, becomes plain text. A name such as ``dd.Upsert`` or ``NullKey``
becomes a link to the reference. A page under ``_outside`` is written only if its text has changed, so a second build
reads only changed pages.
"""

import base64
import json
import os
import re
from pathlib import Path

from ddflow import errors

OUTSIDE = "_outside"
SHOWN = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/results/*.md", "notebooks/*.ipynb")
"""Files that become pages. ``README.md`` is not in the list, because ``index.md`` is the front page of the site."""
LINK = re.compile(r"(?<!\\)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
NAME = re.compile(rf"(?<![\[`\w])`(dd(?:\.\w+)+|{'|'.join(errors.__all__)})`(?![\]`])")
"""Pattern for names in pages that become links to the reference, such as ``dd.Upsert``."""
PICTURES = (".png", ".svg")
FENCE = re.compile(r"^(`{3,}|~{3,})")


def write(docs: Path) -> None:
    """Write the pages under ``_outside``, and delete outdated pages."""
    root, kept = docs.parent, set[Path]()
    for pattern in SHOWN:
        for path in sorted(root.glob(pattern)):
            page = docs / OUTSIDE / path.relative_to(root).with_suffix(".md")
            text = path.read_text("utf-8")
            text = notebook(text) if path.suffix == ".ipynb" else text
            page.parent.mkdir(parents=True, exist_ok=True)
            if not page.exists() or page.read_text("utf-8") != text:
                page.write_text(text, "utf-8")
            kept.add(page)
    for page in (docs / OUTSIDE).rglob("*.md"):
        if page not in kept:
            page.unlink()


def linked(docs: Path, name: str, source: list[str]) -> None:
    """Set the links in the text of a page, but not in code. ``source``: a list whose only item is the page's text.

    The text with links replaces the text in ``source``.
    """
    page = docs / f"{name}.md"
    inside = page.relative_to(docs).parts[0] != OUTSIDE
    written = page if inside else docs.parent / page.relative_to(docs / OUTSIDE)
    fence, lines = "", list[str]()
    for line in source[0].split("\n"):
        mark = FENCE.match(line.lstrip("> "))
        if mark and not fence:
            fence = mark[1]
        elif mark and line.lstrip("> ").startswith(fence):
            fence = ""
            while lines[-1] == "\0":  # the empty line at the end of a doctest
                lines.pop()
        lines.append(line)
        if fence or mark or line.startswith("    "):
            lines[-1] = f"\0{line}"  # code, which has no links
    text = "\n".join(lines)
    text = LINK.sub(lambda found: _set(docs, page, written, found), text)
    text = "\n".join(line if line[:1] in ("\0", "#") else NAME.sub(_named, line) for line in text.split("\n"))
    source[0] = text.replace("\0", "")


def _set(docs: Path, page: Path, written: Path, found: re.Match[str]) -> str:
    picture, text, to, part = found.groups()
    if "\0" in found[0] or not to or "://" in to or to.startswith("mailto:"):
        return found[0]
    target = Path(os.path.normpath(written.parent / to))
    if target.is_relative_to(docs):
        if target == docs / "conf.py" or not target.exists():
            return found[0]
        there = target
    elif target.suffix in PICTURES:
        there = target
    else:
        there = docs / OUTSIDE / target.relative_to(docs.parent).with_suffix(".md")
        if target == docs.parent / "README.md":
            there = docs / "index.md"
        if target.suffix not in (".md", ".ipynb") or not there.exists():
            return text
    return f"{picture}[{text}]({os.path.relpath(there, page.parent)}{part or ''})"


def _named(found: re.Match[str]) -> str:
    """Return a link from a name to its place in the reference."""
    name = found[1]
    full = name.replace("dd.", "ddflow.", 1) if name.startswith("dd.") else f"ddflow.errors.{name}"
    return f"{{py:obj}}`{name} <{full}>`"


def notebook(text: str) -> str:
    """Convert the cells of a notebook to Markdown, together with the outputs of the last run."""
    out = list[str]()
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            out.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            out.append(f"```python\n{source}\n```")
            out += [shown for each in cell["outputs"] if (shown := _shown(each))]
    return "\n\n".join(out) + "\n"


def _shown(output: dict) -> str:
    """Convert the output of a cell to Markdown. The output may be a picture, HTML, or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return _html(f'<img class="given" alt="" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">')
    if "image/svg+xml" in data:
        svg = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return _html(f'<img class="given" alt="" src="data:image/svg+xml;base64,{svg}">')
    if "text/html" in data:
        return _html(f'<div class="given">{"".join(data["text/html"])}</div>')
    plain = "".join(data.get("text/plain", "")).rstrip()
    return f"```{{code-block}} text\n:class: given\n\n{plain}\n```" if plain else ""


def _html(text: str) -> str:
    return f"```{{raw}} html\n{text}\n```"
