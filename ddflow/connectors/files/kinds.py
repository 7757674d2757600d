"""Which files an input is, and what kind each is: by name alone.

Invariant: every file given is listed once for each time it is given, in the order given, a folder's in the order of
their names; and nothing in a folder is passed over in silence but what is hidden. In epoch mode the order of files is
the order of time, and a file that was not looked at is a wrong answer. So a folder that holds a folder, or a file of
no known kind, is refused. Hidden is what begins with ``.`` or ``_``, as what Spark writes beside its data does. Names
sort by code points: ``day-10`` comes before ``day-9``. No file is opened here.

>>> kind_of(Path("orders.csv.gz")), kind_of(Path("Orders.PARQUET"))
(Kind(name='CSV', gzipped=True), Kind(name='Parquet', gzipped=False))
>>> kind_of(Path("orders.xlsx"))
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: orders.xlsx: files of kind '.xlsx' are not known; use .parquet, .csv, .csv.gz, .jsonl, \
.jsonl.gz, .ndjson, .ndjson.gz, .arrow, .feather, .arrows
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ddflow.errors import UnreadableInput


class Kind(NamedTuple):
    """A file format, as people call it, and whether it is wrapped in gzip."""

    name: str
    gzipped: bool = False


CSV, JSON, PARQUET, ARROW, STREAM = "CSV", "JSON lines", "Parquet", "Arrow", "Arrow stream"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")
KINDS: Final = {
    ".parquet": Kind(PARQUET),
    ".csv": Kind(CSV),
    ".csv.gz": Kind(CSV, True),
    ".jsonl": Kind(JSON),
    ".jsonl.gz": Kind(JSON, True),
    ".ndjson": Kind(JSON),
    ".ndjson.gz": Kind(JSON, True),
    ".arrow": Kind(ARROW),
    ".feather": Kind(ARROW),
    ".arrows": Kind(STREAM),
}


def kind_of(path: Path) -> Kind:
    """The kind that a file's name says it is.  Raises `UnreadableInput` for an extension that is not known."""
    name = path.name.lower()
    for ending, kind in KINDS.items():
        if name.endswith(ending):
            return kind
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
    found = f"files of kind {ending!r} are not known" if ending else "its name has no extension to tell its kind"
    raise UnreadableInput(str(path), found, f"use {', '.join(KINDS)}")


def listed(paths: Iterable[Path | str]) -> list[Path]:
    """The files that some files and folders stand for.

    Raises `UnreadableInput` for what is not there, for an address with a scheme, for an unknown kind, for a folder that
    has no file or has a folder in it, and when nothing is given.  O(files).
    """
    files: list[Path] = []
    for given in paths:
        path = Path(given)
        _check_here(str(given), path)
        files += _within(path) if path.is_dir() else [path]
    if not files:
        raise UnreadableInput("an input", "no file is given", "name at least one file or folder")
    for file in files:
        kind_of(file)
        if not file.exists():
            raise UnreadableInput(str(file), "there is no such file or folder", "check the name and where you are")
    return files


def _check_here(given: str, path: Path) -> None:
    """Refuse an address such as ``s3://...``, of which a `Path` would make a folder below this one."""
    match = _SCHEME.match(given)
    if match is not None and (match[2] == "//" or not path.exists()):
        # Neither keys in front of the place nor a signature behind it are repeated.
        place = re.split(r"[?#]", given[match.end() :].rpartition("@")[2])[0]
        raise UnreadableInput(
            f"{match[1]}://{place}",
            "inputs are files and folders of this machine",
            "copy it here first, or read it in Python and give its rows to a step",
        )


def _within(folder: Path) -> list[Path]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.name[0] not in "._")
    except OSError as error:
        raise UnreadableInput(str(folder), f"it cannot be listed ({error.strerror})", "check its permissions") from None
    inner = [entry.name for entry in entries if entry.is_dir()]
    if inner:
        raise UnreadableInput(
            str(folder),
            f"there are folders in it: {inner[:5]}",
            "they are not gone into: name the folders you mean, in the order you mean",
        )
    if not entries:
        raise UnreadableInput(str(folder), "there is no file in it", "name another folder, or files")
    return entries
