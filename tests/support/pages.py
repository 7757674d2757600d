"""Run the scripts in documentation pages against the servers of the tests."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language, without doctests."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in found if ">>> " not in block]


def run(page: str, folder: Path, addresses: dict[str, str]) -> None:
    """Run all scripts of a page as a single script, in this process.

    ``addresses``: the page's addresses, and their replacements.
    """
    script = "\n".join(blocks(page, "python"))
    for written, real in addresses.items():
        assert written in script, f"{page} does not name {written}"
        script = script.replace(written, real)
    path = folder / "page.py"
    path.write_text(script, "utf-8")
    runpy.run_path(str(path))
