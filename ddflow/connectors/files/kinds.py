"""What kind a file is, by its name alone or as somebody says; and how text is written, where that is not as usual.

Invariant: a name says one kind.  Text of every kind may be wrapped in gzip or zstd, which the last ending says.

>>> kind_of("orders.csv.gz"), kind_of("Orders.PARQUET"), named("tsv")
(Kind(name='CSV', wrapped='gzip', delimiter=','), Kind(name='Parquet', wrapped=None, delimiter=','), \
Kind(name='TSV', wrapped=None, delimiter='\\t'))
>>> kind_of("orders.gz", named("csv"))
Kind(name='CSV', wrapped='gzip', delimiter=',')
>>> kind_of("orders.txt")
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: orders.txt: files of kind '.txt' are not known; use .parquet, .arrow, .feather, \
.arrows, .csv, .tsv, .tab, .jsonl, .ndjson, .json; text also with .gz or .zst behind; or say what it holds, as in \
dd.FilePath('orders.txt', format='csv')
"""

import codecs
from pathlib import PurePath
from typing import Final, NamedTuple

from ddflow.connectors.files.forms import Forms
from ddflow.errors import FileFix, Phrase, SpecError, UnreadableInput


class Kind(NamedTuple):
    """File format by its usual name, its compression (``wrapped``), and the delimiter of its values."""

    name: str
    wrapped: str | None = None
    delimiter: str = ","


CSV, TSV, JSON, ARRAY = "CSV", "TSV", "JSON lines", "JSON"
PARQUET, ARROW, STREAM = "Parquet", "Arrow", "Arrow stream"
MESSAGES: Final = Kind("messages")
"""A message of a format in each line; no name says so."""
WRAPS: Final = {".gz": "gzip", ".zst": "zstd"}
_TEXTS: Final = {
    ".csv": Kind(CSV),
    ".tsv": Kind(TSV, delimiter="\t"),
    ".tab": Kind(TSV, delimiter="\t"),
    ".jsonl": Kind(JSON),
    ".ndjson": Kind(JSON),
    ".json": Kind(ARRAY),
}
_PLAIN: Final = {
    ".parquet": Kind(PARQUET),
    ".arrow": Kind(ARROW),
    ".feather": Kind(ARROW),
    ".arrows": Kind(STREAM),
    **_TEXTS,
}
COLUMNAR: Final = tuple(ending for ending in _PLAIN if ending not in _TEXTS)
"""The endings of files that have columns with types."""
KINDS: Final = _PLAIN | {
    ending + wrap: kind._replace(wrapped=how) for ending, kind in _TEXTS.items() for wrap, how in WRAPS.items()
}
"""The kinds by the endings of names."""
USE: Final = f"use {', '.join(_PLAIN)}; text also with .gz or .zst behind"
"""What to do about a name that says no kind."""


class Dialect(NamedTuple):
    """Form of files: delimiter of CSV, texts for null, encoding, forms of numbers and dates, kind, renamed columns.

    The delimiter and the kind are None if the name of a file decides. An empty field is always null. `Forms` has the
    forms of numbers and dates.
    """

    delimiter: str | None = None
    nulls: tuple[str, ...] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    dates: tuple[str, ...] = ()
    thousands: str | None = None
    kind: Kind | None = None
    rename: tuple[tuple[str, str], ...] = ()

    @property
    def forms(self) -> Forms:
        """Forms of its values."""
        return Forms(self.decimal, self.dates, self.thousands)

    def checked(self) -> "Dialect":
        """Check the dialect and read ``\\t`` and ``tab`` as a tab.  Raises `SpecError` for an invalid value."""
        delimiter = {r"\t": "\t", "tab": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
            raise SpecError(f"the delimiter {delimiter!r}", "it is not one ASCII character", "give one, such as ';'")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            found, remedy = "there is no such encoding", "give one that Python knows: latin-1, cp1252, utf-16"
            raise SpecError(f"the encoding {self.encoding!r}", found, remedy) from None
        self.forms.checked()
        if any("" in pair for pair in self.rename):
            raise SpecError("rename=", "a name is empty", "give the old name and the new one: Order ID=id")
        names = [new for _, new in self.rename]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError("rename=", f"several columns become {twice}", "give each a name of its own")
        return self._replace(delimiter=delimiter)


PLAIN: Final = Dialect()


def is_json(kind: str) -> bool:
    """Return whether a kind of file holds JSON."""
    return kind in (JSON, ARRAY)


def is_text_kind(kind: str) -> bool:
    """Return whether a kind of file is text, without stored types."""
    return kind in (CSV, TSV, JSON, ARRAY)


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, by any of its names that Arrow takes."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def kind_of(name: str | PurePath, given: Kind | None = None) -> Kind:
    """Return the given kind, or the kind in a file's name.  Raises `UnreadableInput` for an unknown extension."""
    path = PurePath(name)
    if given is not None:
        wrapped = given.wrapped or (WRAPS.get(path.suffix.lower()) if is_text_kind(given.name) else None)
        return given._replace(wrapped=wrapped)
    for ending, kind in KINDS.items():
        if path.name.lower().endswith(ending):
            return kind
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() in WRAPS else path.suffix
    found = f"files of kind {ending!r} are not known" if ending else "its name has no extension to tell its kind"
    remedy = Phrase(f"{USE}; or say what it holds, as in ", FileFix(str(name), {"format": "csv"}))
    raise UnreadableInput(str(name), found, remedy)


def named(ending: str) -> Kind:
    """Return the kind for an extension, with or without its dot.  Raises `SpecError`."""
    kind = KINDS.get(f".{ending.lower().removeprefix('.')}")
    if kind is None:
        raise SpecError(f"the format {ending!r}", "there is no such kind of file", USE)
    return kind


def ending_of(kind: Kind) -> str:
    """Return the extension of a kind, an argument of `named`.

    >>> ending_of(named("csv.gz"))
    'csv.gz'
    """
    return next(ending for ending, each in KINDS.items() if each == kind).removeprefix(".")


def sniffed(begin: bytes) -> Kind:
    """Guess the kind of a file from its first bytes; CSV if they match no other kind.  O(1).

    >>> sniffed(b'[{"id": 1}]').name, sniffed(b"id\\tcity\\n1\\tBern, BE").name
    ('JSON', 'TSV')
    """
    if begin.startswith(b"PAR1"):
        return Kind(PARQUET)
    if begin.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return Kind(ARROW)
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:4096]
    if text.startswith((b"{", b"[")):
        return Kind(JSON if text.startswith(b"{") else ARRAY)
    header = text.partition(b"\n")[0]
    return _TEXTS[".tsv" if b"\t" in header and b"," not in header else ".csv"]
