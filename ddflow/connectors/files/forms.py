r"""Forms of numbers and dates in text, where they are not the usual ones: a decimal comma, groups of three digits, days
before months.

Invariant: a text in one of the forms becomes the text that means the same as usual (``12.5``, ISO 8601), and what its
type then makes of it is for ``spelling``; a text in none becomes the empty text, which no type but text takes. Where
groups of digits are said, a number may have them: all of three digits, behind one to three that begin with no zero. A
date is as exact as ISO's: no 31st of February, no year of two digits for ``%Y``. A text is of the first form that it
looks like, also where that gives no day: a column of both orders would be a guess. ISO's own is one of the forms only
where ``iso`` says so, because ``%Y-%d-%m`` looks like it.

``%d %m %Y %y %b %B %H %I %p %M %S %f %z`` and ``%%`` are as in Python's ``strptime``: months by their English names,
days, months and hours with or without a zero in front where something stands between, ``%f`` of up to 9 digits, ``%y``
of 1969 to 2068. ``%z`` is ``Z``, ``+01:00`` or ``+0100``. Libraries' own parsers do not do: Arrow's reader of CSV gives
no dates by formats, and the system's ``strptime`` takes 31.02.2024 for the 2nd of March, and 03.01.24 for the year 24.

>>> forms = Forms(",", ("%d.%m.%Y", "%d.%m.%Y %H:%M"))
>>> forms.usual(pa.array(["12,50", "1.250", None]), pa.float64()).to_pylist()
['12.50', '', None]
>>> Forms(",", thousands=".").usual(pa.array(["1.250,5", "12.500", "12.5", "7"]), pa.float64()).to_pylist()
['1250.5', '12500', '', '7']
>>> forms.usual(pa.array(["3.1.2024", "03.01.2024 14:05", "2024-01-03"]), pa.date32()).to_pylist()
['2024-01-03', '2024-01-03 14:05:00', '']
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import Option, Phrase, SpecError
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
"""Which part has no meaning without which others, one of which must be there."""
COMMA: Final = re.compile(r"[+-]?\d+,\d+")
"""A number with a decimal comma."""
POINT: Final = re.compile(r"[+-]?\d+\.\d+")
"""A number with a decimal point."""
GROUPS: Final = (".", ",", " \u00a0\u202f", "'\u2019")
"""What may stand between groups of three digits; those in one text are taken for each other."""
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


class Forms(NamedTuple):
    """Forms of numbers and dates: decimal mark, date forms (none: ISO 8601), separator of digit groups or None."""

    decimal: str = "."
    dates: tuple[str, ...] = ()
    thousands: str | None = None

    def usual(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Convert the texts of a column to the usual form of its type.  O(n)."""
        if is_number(kind):
            texts = texts if self.thousands is None else self._remove_groups(texts)
            if self.decimal == ",":
                texts = pc.if_else(pc.match_substring(texts, "."), "", pc.replace_substring(texts, ",", "."))
            return texts
        if self.dates and (pat.is_date(kind) or pat.is_timestamp(kind)):
            encoded = texts.dictionary_encode()  # a day is there many times
            words = encoded.dictionary
            return pc.coalesce(*(_in_iso(words, each) for each in self.dates), "").take(encoded.indices)
        return texts

    def grouped(self, texts: pa.Array) -> pa.Array:
        """Mark the texts that are numbers with groups of three digits.  O(n)."""
        fraction = re.escape(self.decimal)
        return pc.match_substring_regex(texts, rf"^[+-]?[1-9]\d{{0,2}}({self._between}\d{{3}})+({fraction}\d+)?$")

    def _remove_groups(self, texts: pa.Array) -> pa.Array:
        """Remove the separators between groups of digits; a misplaced one gives the empty text."""
        odd = pc.and_not(pc.match_substring_regex(texts, self._between), self.grouped(texts))
        return pc.if_else(odd, "", pc.replace_substring_regex(texts, self._between, ""))

    @property
    def _between(self) -> str:
        """Regular expression of the separators between groups."""
        return f"[{next(each for each in GROUPS if (self.thousands or '.') in each)}]"

    def checked(self) -> "Forms":
        """Check the forms and return them.  Raises `SpecError` for an invalid form."""
        if self.decimal not in (".", ","):
            raise SpecError(Option("decimal", self.decimal), "it is neither a point nor a comma", "give '.' or ','")
        if self.thousands is not None and self.thousands not in [*"".join(GROUPS)]:
            found = "it is no point, comma, space or apostrophe"
            raise SpecError(Option("thousands", self.thousands), found, "give '.', ',', ' ' or \"'\"")
        if self.thousands == self.decimal:
            found = Phrase(Option("decimal", self.decimal), " is the same")
            raise SpecError(
                Option("thousands", self.thousands),
                found,
                Phrase("give both: ", Option("decimal", ","), ", ", Option("thousands", ".")),
            )
        for each in self.dates:
            if each != ISO:
                _pattern(each)
        return self


USUAL: Final = Forms()


@cache
def _pattern(form: str) -> str:
    """Build the regular expression of a form of dates, with a group for each part.  Raises `SpecError`."""
    asked, tokens = Option("dates", form), [(each[1], each[2]) for each in _TOKEN.finditer(form)]
    parts = [part for part, between in tokens if not between and part != "%"]
    remedy = "write it as '%d.%m.%Y' or '%m/%d/%Y %H:%M', or 'iso'"
    if odd := [each for each in parts if each not in _PARTS]:
        raise SpecError(asked, f"%{odd[0]} is not known", f"use %{', %'.join(_PARTS)}, %%")
    if twice := [each for each in parts if parts.count(each) > 1]:
        raise SpecError(asked, f"%{twice[0]} is there twice", remedy)
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
        pattern = _TWO.get(part, _PARTS[part]) if beside & _DIGITS else _PARTS[part]  # else 2024111 has two meanings
        found.append(f"(?P<{part}>{pattern})")
    return f"^{''.join(found)}$"


def _in_iso(texts: pa.Array, form: str) -> pa.Array:
    """Convert the texts of a form to ISO 8601; others become null.  O(n)."""
    if form == ISO:
        return pc.if_else(pc.match_substring_regex(texts, _ISO), texts, None)
    found = pc.extract_regex(texts, _pattern(form))
    parts = {field.name: pc.struct_field(found, field.name) for field in found.type}
    day = pc.binary_join_element_wise(_year(parts), _month(parts), pc.utf8_lpad(parts["d"], 2, "0"), "-")
    if not {"H", "I"} & parts.keys():
        return day
    time = pc.binary_join_element_wise(_hour(parts), parts.get("M", "00"), parts.get("S", "00"), ":")
    if "f" in parts:
        time = pc.binary_join_element_wise(time, parts["f"], ".")
    return pc.binary_join_element_wise(day, pc.binary_join_element_wise(time, parts.get("z", ""), ""), " ")


def _year(parts: Mapping[str, pa.Array]) -> pa.Array:
    if "Y" in parts:
        return parts["Y"]
    century = pc.if_else(pc.greater_equal(parts["y"], "69"), "19", "20")
    return pc.binary_join_element_wise(century, parts["y"], "")


def _month(parts: Mapping[str, pa.Array]) -> pa.Array:
    month = parts.get("m")
    if month is None:
        names = pc.utf8_lower(pc.utf8_slice_codeunits(parts["b"] if "b" in parts else parts["B"], 0, 3))
        month = pc.add(pc.index_in(names, value_set=_SHORT), 1).cast(pa.string())
    return pc.utf8_lpad(month, 2, "0")


def _hour(parts: Mapping[str, pa.Array]) -> pa.Array:
    hour = parts.get("H")
    if hour is None:
        of_twelve = parts["I"].cast(pa.int8())
        since = pc.if_else(pc.equal(of_twelve, 12), 0, of_twelve)
        hour = pc.add(since, pc.if_else(pc.equal(pc.utf8_lower(parts["p"]), "pm"), 12, 0)).cast(pa.string())
    return pc.utf8_lpad(hour, 2, "0")


def likely(texts: Sequence[str]) -> list[str]:
    """List the usual forms of dates that fit all texts.  O(texts).

    >>> likely(["03.01.2024"]), likely(["1/3/2024 2:05 PM"]), likely(["1/3/2024", "1/13/2024"]), likely(["1.2.3"])
    (['%d.%m.%Y'], ['%d/%m/%Y %I:%M %p', '%m/%d/%Y %I:%M %p'], ['%m/%d/%Y'], [])
    """
    if not texts or not all(map(_LIKE.fullmatch, texts)):
        return []
    given, moment = pa.array(texts), pa.timestamp("ns")
    found = list[str]()
    for form in (ISO, *(day + time for time in _TIMES for day in _DAYS)):
        try:
            if not Forms(dates=(form,)).usual(given, moment).cast(moment).null_count:
                found.append(form)
        except pa.ArrowInvalid:
            continue
    return found
