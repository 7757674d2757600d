"""Find the format of a file from its name, and define the notation of numbers and dates in text.

Guarantees: the extension sets the format unless an option sets it. Only the format of standard input is detected from
the first bytes. A decimal comma, digit groups and dates other than ISO 8601 apply only if the dialect of the file
declares them.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePath
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import ErrorText, FileFix, Option, SpecError, UnreadableInput
from ddflow.expressions.types import is_number

ISO: Final = "iso"
_ISO: Final = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"
_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORT: Final = pa.array([name[:3] for name in _MONTHS])
_PARTS: Final = {
    "d": r"\d{1,2}",
    "m": r"\d{1,2}",
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "b": f"(?i:{'|'.join(_SHORT.to_pylist())})",
    "B": f"(?i:{'|'.join(_MONTHS)})",
    "H": r"\d{1,2}",
    "I": r"0?[1-9]|1[0-2]",
    "p": "(?i:am|pm)",
    "M": r"\d{2}",
    "S": r"\d{2}",
    "f": r"\d{1,9}",
    "z": r"Z|[+-]\d{2}:?\d{2}",
}
_TWO: Final = {"d": r"\d{2}", "m": r"\d{2}", "H": r"\d{2}", "I": r"0[1-9]|1[0-2]"}
_DIGITS: Final = frozenset("dmYyHIMSf")
_TOKEN: Final = re.compile(r"%(.?)|([^%]+)", re.DOTALL)
_NEEDS: Final = {"f": "S", "S": "M", "M": "HI", "z": "HI", "I": "p", "p": "I"}
"""Codes of a date format, each with a set of codes of which the format must contain at least one."""
COMMA: Final = re.compile(r"[+-]?\d+,\d+")
"""A number with a decimal comma."""
POINT: Final = re.compile(r"[+-]?\d+\.\d+")
"""A number with a decimal point."""
GROUPS: Final = (".", ",", " \u00a0\u202f", "'\u2019")
"""Separators of digit groups.  The characters within one string of this tuple count as the same separator."""
_DAYS: Final = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d-%b-%Y",
    "%d %b %Y",
)
_TIMES: Final = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_LIKE: Final = re.compile(r"\d{1,4}[-/. ](\d{1,2}|[A-Za-z]{3})[-/. ]\d{1,4}\b.{0,20}")


class ValueFormats(NamedTuple):
    """Notation of numbers and dates: the decimal mark, the date formats (none for ISO 8601), and the group separator.

    >>> forms = ValueFormats(",", ("%d.%m.%Y", "%d.%m.%Y %H:%M"))
    >>> forms.normalize(pa.array(["12,50", "1.250", None]), pa.float64()).to_pylist()
    ['12.50', '', None]
    >>> ValueFormats(",", thousands=".").normalize(pa.array(["1.250,5", "12.500", "12.5", "7"]),
    ...     pa.float64()).to_pylist()
    ['1250.5', '12500', '', '7']
    >>> forms.normalize(pa.array(["3.1.2024", "03.01.2024 14:05", "2024-01-03"]), pa.date32()).to_pylist()
    ['2024-01-03', '2024-01-03 14:05:00', '']
    """

    decimal: str = "."
    dates: tuple[str, ...] = ()
    thousands: str | None = None

    def normalize(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Convert the texts of a column to the standard notation of its type; an invalid text becomes empty.  O(n)."""
        if is_number(kind):
            texts = texts if self.thousands is None else self._remove_separators(texts)
            if self.decimal == ",":
                texts = pc.if_else(pc.match_substring(texts, "."), "", pc.replace_substring(texts, ",", "."))
            return texts
        if self.dates and (pat.is_date(kind) or pat.is_timestamp(kind)):
            encoded = texts.dictionary_encode()  # dates repeat often, so convert each once
            words = encoded.dictionary
            return pc.coalesce(*(_convert_dates_to_iso(words, each) for each in self.dates), "").take(encoded.indices)
        return texts

    def mark_grouped_numbers(self, texts: pa.Array) -> pa.Array:
        """Mark the texts that are numbers with groups of three digits.  O(n)."""
        fraction = re.escape(self.decimal)
        return pc.match_substring_regex(
            texts, rf"^[+-]?[1-9]\d{{0,2}}({self._separator_pattern}\d{{3}})+({fraction}\d+)?$"
        )

    def _remove_separators(self, texts: pa.Array) -> pa.Array:
        """Remove the separators between digit groups; a text with a misplaced separator becomes empty."""
        odd = pc.and_not(pc.match_substring_regex(texts, self._separator_pattern), self.mark_grouped_numbers(texts))
        return pc.if_else(odd, "", pc.replace_substring_regex(texts, self._separator_pattern, ""))

    @property
    def _separator_pattern(self) -> str:
        """Regular expression for the separators of digit groups."""
        return f"[{next(each for each in GROUPS if (self.thousands or '.') in each)}]"

    def validate(self) -> "ValueFormats":
        """Check the notation, and return the notation unchanged.  Raises `SpecError` if a part is invalid."""
        if self.decimal not in (".", ","):
            raise SpecError(Option("decimal", self.decimal), "it is neither a point nor a comma", "use '.' or ','")
        if self.thousands is not None and self.thousands not in [*"".join(GROUPS)]:
            found = "it is not a point, comma, space or apostrophe"
            raise SpecError(Option("thousands", self.thousands), found, "use '.', ',', ' ' or \"'\"")
        if self.thousands == self.decimal:
            found = ErrorText(Option("decimal", self.decimal), " is the same mark")
            raise SpecError(
                Option("thousands", self.thousands),
                found,
                ErrorText("use different marks: ", Option("decimal", ","), ", ", Option("thousands", ".")),
            )
        for each in self.dates:
            if each != ISO:
                _build_date_pattern(each)
        return self


USUAL: Final = ValueFormats()


@cache
def _build_date_pattern(form: str) -> str:
    """Build the regular expression of a date format, with a group for each part.  Raises `SpecError`."""
    asked, tokens = Option("dates", form), [(each[1], each[2]) for each in _TOKEN.finditer(form)]
    parts = [part for part, between in tokens if not between and part != "%"]
    remedy = "write it as '%d.%m.%Y' or '%m/%d/%Y %H:%M', or 'iso'"
    if odd := [each for each in parts if each not in _PARTS]:
        raise SpecError(asked, f"%{odd[0]} is unknown", f"use %{', %'.join(_PARTS)}, %%")
    if twice := [each for each in parts if parts.count(each) > 1]:
        raise SpecError(asked, f"%{twice[0]} occurs twice", remedy)
    for what, some in (("day", "d"), ("month", "mbB"), ("year", "Yy"), ("hour", "HI")):
        if len(found := [each for each in parts if each in some]) != 1 and (found or what != "hour"):
            raise SpecError(asked, f"it has {'two' if found else 'no'} {what}{'s' if found else ''}", remedy)
    for part, others in _NEEDS.items():
        if part in parts and not set(others) & set(parts):
            raise SpecError(asked, f"%{part} needs %{' or %'.join(others)}", remedy)
    found = list[str]()
    for place, (part, between) in enumerate(tokens):
        if between or part == "%":
            found.append(re.escape(between or part))
            continue
        beside = {tokens[n][0] for n in (place - 1, place + 1) if 0 <= n < len(tokens) and not tokens[n][1]}
        pattern = _TWO.get(part, _PARTS[part]) if beside & _DIGITS else _PARTS[part]  # otherwise 2024111 is ambiguous
        found.append(f"(?P<{part}>{pattern})")
    return f"^{''.join(found)}$"


def _convert_dates_to_iso(texts: pa.Array, form: str) -> pa.Array:
    """Convert texts in a date format to ISO 8601; other texts become null.  O(n)."""
    if form == ISO:
        return pc.if_else(pc.match_substring_regex(texts, _ISO), texts, None)
    found = pc.extract_regex(texts, _build_date_pattern(form))
    parts = {field.name: pc.struct_field(found, field.name) for field in found.type}
    day = pc.binary_join_element_wise(_format_year(parts), _format_month(parts), pc.utf8_lpad(parts["d"], 2, "0"), "-")
    if not {"H", "I"} & parts.keys():
        return day
    time = pc.binary_join_element_wise(_format_hour(parts), parts.get("M", "00"), parts.get("S", "00"), ":")
    if "f" in parts:
        time = pc.binary_join_element_wise(time, parts["f"], ".")
    return pc.binary_join_element_wise(day, pc.binary_join_element_wise(time, parts.get("z", ""), ""), " ")


def _format_year(parts: Mapping[str, pa.Array]) -> pa.Array:
    if "Y" in parts:
        return parts["Y"]
    century = pc.if_else(pc.greater_equal(parts["y"], "69"), "19", "20")
    return pc.binary_join_element_wise(century, parts["y"], "")


def _format_month(parts: Mapping[str, pa.Array]) -> pa.Array:
    month = parts.get("m")
    if month is None:
        names = pc.utf8_lower(pc.utf8_slice_codeunits(parts["b"] if "b" in parts else parts["B"], 0, 3))
        month = pc.add(pc.index_in(names, value_set=_SHORT), 1).cast(pa.string())
    return pc.utf8_lpad(month, 2, "0")


def _format_hour(parts: Mapping[str, pa.Array]) -> pa.Array:
    hour = parts.get("H")
    if hour is None:
        of_twelve = parts["I"].cast(pa.int8())
        since = pc.if_else(pc.equal(of_twelve, 12), 0, of_twelve)
        hour = pc.add(since, pc.if_else(pc.equal(pc.utf8_lower(parts["p"]), "pm"), 12, 0)).cast(pa.string())
    return pc.utf8_lpad(hour, 2, "0")


def guess_date_formats(texts: Sequence[str]) -> list[str]:
    """List the common date formats that fit all texts.  O(texts).

    >>> guess_date_formats(["03.01.2024"]), guess_date_formats(["1/3/2024 2:05 PM"])
    (['%d.%m.%Y'], ['%d/%m/%Y %I:%M %p', '%m/%d/%Y %I:%M %p'])
    >>> guess_date_formats(["1/3/2024", "1/13/2024"]), guess_date_formats(["1.2.3"])
    (['%m/%d/%Y'], [])
    """
    if not texts or not all(map(_LIKE.fullmatch, texts)):
        return []
    given, moment = pa.array(texts), pa.timestamp("ns")
    found = list[str]()
    for form in (ISO, *(day + time for time in _TIMES for day in _DAYS)):
        try:
            if not ValueFormats(dates=(form,)).normalize(given, moment).cast(moment).null_count:
                found.append(form)
        except pa.ArrowInvalid:
            continue
    return found


class FileKind(NamedTuple):
    """Format of a file: its name, its compression (``wrapped``), and the delimiter of its values.

    >>> find_kind("orders.csv.gz"), find_kind("Orders.PARQUET"), find_kind_by_extension("tsv")
    (FileKind(name='CSV', wrapped='gzip', delimiter=','), FileKind(name='Parquet', wrapped=None, delimiter=','), \
    FileKind(name='TSV', wrapped=None, delimiter='\\t'))
    >>> find_kind("orders.gz", find_kind_by_extension("csv"))
    FileKind(name='CSV', wrapped='gzip', delimiter=',')
    >>> find_kind("orders.txt")
    Traceback (most recent call last):
        ...
    ddflow.errors.UnreadableInput: orders.txt: unknown file type '.txt'; use .parquet, .arrow, .feather, \
    .arrows, .csv, .tsv, .tab, .jsonl, .ndjson, .json; text also with .gz or .zst after it; or pass its format, as in \
    dd.FilePath('orders.txt', format='csv')
    """

    name: str
    wrapped: str | None = None
    delimiter: str = ","


CSV, TSV, JSON, ARRAY = "CSV", "TSV", "JSON lines", "JSON"
PARQUET, ARROW, STREAM = "Parquet", "Arrow", "Arrow stream"
MESSAGES: Final = FileKind("messages")
"""Kind of files with one message in each line.  No extension selects this kind."""
WRAPS: Final = {".gz": "gzip", ".zst": "zstd"}
_TEXTS: Final = {
    ".csv": FileKind(CSV),
    ".tsv": FileKind(TSV, delimiter="\t"),
    ".tab": FileKind(TSV, delimiter="\t"),
    ".jsonl": FileKind(JSON),
    ".ndjson": FileKind(JSON),
    ".json": FileKind(ARRAY),
}
_PLAIN: Final = {
    ".parquet": FileKind(PARQUET),
    ".arrow": FileKind(ARROW),
    ".feather": FileKind(ARROW),
    ".arrows": FileKind(STREAM),
    **_TEXTS,
}
COLUMNAR: Final = tuple(ending for ending in _PLAIN if ending not in _TEXTS)
"""Extensions of formats that store types."""
KINDS: Final = _PLAIN | {
    ending + wrap: kind._replace(wrapped=how) for ending, kind in _TEXTS.items() for wrap, how in WRAPS.items()
}
"""Kinds of files by extension."""
USE: Final = f"use {', '.join(_PLAIN)}; text also with .gz or .zst after it"
"""Remedy for a name with an unknown extension."""


class Dialect(NamedTuple):
    """Text options of files: CSV delimiter, texts for null, encoding, notation of values, file kind, renamed columns.

    The delimiter and the kind are None if the name of a file determines both. An empty field is always null.
    `ValueFormats` describes the notation of numbers and dates.
    """

    delimiter: str | None = None
    nulls: tuple[str, ...] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    dates: tuple[str, ...] = ()
    thousands: str | None = None
    kind: FileKind | None = None
    rename: tuple[tuple[str, str], ...] = ()

    @property
    def value_formats(self) -> ValueFormats:
        """Notation of numbers and dates."""
        return ValueFormats(self.decimal, self.dates, self.thousands)

    def validate(self) -> "Dialect":
        """Check the dialect and return it, with a tab if the delimiter is spelled ``\\t`` or ``tab``.

        Raises `SpecError` for an invalid value.
        """
        delimiter = {r"\t": "\t", "tab": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
            raise SpecError(f"the delimiter {delimiter!r}", "it is not one ASCII character", "use one, such as ';'")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            found, remedy = "there is no such encoding", "use one that Python knows: latin-1, cp1252, utf-16"
            raise SpecError(f"the encoding {self.encoding!r}", found, remedy) from None
        self.value_formats.validate()
        if any("" in pair for pair in self.rename):
            raise SpecError("rename=", "a name is empty", "pass the old name and the new name: Order ID=id")
        names = [new for _, new in self.rename]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError("rename=", f"several columns become {twice}", "choose a different name for each column")
        return self._replace(delimiter=delimiter)


PLAIN: Final = Dialect()


def is_json_kind(kind: str) -> bool:
    """Return whether a kind of file holds JSON."""
    return kind in (JSON, ARRAY)


def is_text_kind(kind: str) -> bool:
    """Return whether a kind of file is text, without stored types."""
    return kind in (CSV, TSV, JSON, ARRAY)


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, under any name that Arrow accepts."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def find_kind(name: str | PurePath, given: FileKind | None = None) -> FileKind:
    """Return the given kind, or the kind for a file's extension.  Raises `UnreadableInput` for an unknown extension."""
    path = PurePath(name)
    if given is not None:
        wrapped = given.wrapped or (WRAPS.get(path.suffix.lower()) if is_text_kind(given.name) else None)
        return given._replace(wrapped=wrapped)
    for ending, kind in KINDS.items():
        if path.name.lower().endswith(ending):
            return kind
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() in WRAPS else path.suffix
    found = f"unknown file type {ending!r}" if ending else "its name has no extension that shows its type"
    remedy = ErrorText(f"{USE}; or pass its format, as in ", FileFix(str(name), {"format": "csv"}))
    raise UnreadableInput(str(name), found, remedy)


def find_kind_by_extension(ending: str) -> FileKind:
    """Return the kind for an extension that is written with or without a dot.  Raises `SpecError`."""
    kind = KINDS.get(f".{ending.lower().removeprefix('.')}")
    if kind is None:
        raise SpecError(f"the format {ending!r}", "there is no such file type", USE)
    return kind


def find_extension(kind: FileKind) -> str:
    """Return the extension of a kind.  `find_kind_by_extension` maps the extension back to the kind.

    >>> find_extension(find_kind_by_extension("csv.gz"))
    'csv.gz'
    """
    return next(ending for ending, each in KINDS.items() if each == kind).removeprefix(".")


def sniff_file_kind(begin: bytes) -> FileKind:
    """Guess the kind of a file from its first bytes; CSV if the bytes match no other kind.  O(1).

    >>> sniff_file_kind(b'[{"id": 1}]').name, sniff_file_kind(b"id\\tcity\\n1\\tBern, BE").name
    ('JSON', 'TSV')
    """
    if begin.startswith(b"PAR1"):
        return FileKind(PARQUET)
    if begin.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return FileKind(ARROW)
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:4096]
    if text.startswith((b"{", b"[")):
        return FileKind(JSON if text.startswith(b"{") else ARRAY)
    header = text.partition(b"\n")[0]
    return _TEXTS[".tsv" if b"\t" in header and b"," not in header else ".csv"]
