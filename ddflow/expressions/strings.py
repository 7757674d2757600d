"""Functions of text: case, length, slices, padding, joining, searching, regular expressions.

Invariant: positions and lengths count characters (code points) from 1, as in Spark, never bytes; a null argument gives
null. Spark's slices reach before the start and keep counting, its upper case may lengthen a text (ß becomes SS), and
its replacement texts are Java's. Patterns, widths and counts must be literals: they are compiled once. Regular
expressions are RE2's.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> TABLE.entries["substring"].call([constant(pa.scalar(v)) for v in ("abc", -5, 3)]).constant
<pyarrow.StringScalar: 'a'>
>>> upper(constant(pa.scalar("straße"))).constant
<pyarrow.StringScalar: 'STRASSE'>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import as_text
from ddflow.expressions.compare import checked_regex, literal_text
from ddflow.expressions.node import Compute, Datum, Node, Refusal, apply, null, on_arrays
from ddflow.expressions.room import fits, lengths
from ddflow.expressions.table import Table, whole
from ddflow.expressions.types import BINARY, BOOL, DOUBLE, INT32, NULL, STRING

TABLE = Table()

# Letters whose upper or lower case is more than one letter, or depends on the place in the word; a superset will do.
_ODD_UPPER = "[ßŉǰΐΰև\u1e96-\u1e9a\u1f50-\u1f56\u1f80-\u1fff\ufb00-\ufb17]"
_ODD_LOWER = "[İΣ]"


def _cased(kernel: Compute, odd: str, python: Callable[[str], str]) -> Compute:
    def compute(array: pa.Array) -> pa.Array:
        result = kernel(array)
        if pc.all(pc.string_is_ascii(array), min_count=0).as_py():
            return result
        rare = pc.fill_null(pc.match_substring_regex(array, odd), False)
        texts = [python(text) for text in array.filter(rare).to_pylist()]
        return pc.replace_with_mask(result, rare, pa.array(texts, STRING))

    return on_arrays(compute)


_UPPER, _LOWER = _cased(pc.utf8_upper, _ODD_UPPER, str.upper), _cased(pc.utf8_lower, _ODD_LOWER, str.lower)


@TABLE.function("upper", "ucase", arguments=(1, 1))
def upper(text: Node) -> Node:
    return apply(_UPPER, as_text(text))


@TABLE.function("lower", "lcase", arguments=(1, 1))
def lower(text: Node) -> Node:
    return apply(_LOWER, as_text(text))


@TABLE.function("length", "len", "char_length", "character_length", arguments=(1, 1))
def length(text: Node) -> Node:
    """Characters; bytes of a binary value."""
    if text.type == BINARY:
        return apply(lambda value: pc.binary_length(value).cast(INT32), text)
    return apply(lambda value: pc.utf8_length(value).cast(INT32), as_text(text))


@TABLE.function("reverse", arguments=(1, 1))
def reverse(text: Node) -> Node:
    return apply(pc.utf8_reverse, as_text(text))


def _sliced(text: Node, start: int, stop: int | None) -> Node:
    return apply(lambda value: pc.utf8_slice_codeunits(value, start, stop), text)


@TABLE.function("substring", "substr", arguments=(2, 3))
def substring(text: Node, position: Node, count: Node | None = None) -> Node:
    """From a position, counted from 1, or from the end when negative, which may lie before the start."""
    text, start = as_text(text), whole(position, "the position of substring")
    length = 2**31 - 1 if count is None else whole(count, "the length of substring")
    if start is None or length is None:
        return null(STRING)
    if length <= 0:
        return _sliced(text, 0, 0)
    if start >= 0:
        start = max(start - 1, 0)
        return _sliced(text, start, start + length)
    return _sliced(text, start, start + length if start + length < 0 else None)


@TABLE.function("left", arguments=(2, 2))
def left(text: Node, count: Node) -> Node:
    """The first characters."""
    size = whole(count, "the length of left")
    return null(STRING) if size is None else _sliced(as_text(text), 0, max(size, 0))


@TABLE.function("right", arguments=(2, 2))
def right(text: Node, count: Node) -> Node:
    """The last characters."""
    size = whole(count, "the length of right")
    if size is None:
        return null(STRING)
    return _sliced(as_text(text), -size, None) if size > 0 else _sliced(as_text(text), 0, 0)


@TABLE.function("repeat", arguments=(2, 2))
def repeat(text: Node, count: Node) -> Node:
    """So many times over; "" for less than once."""
    times = whole(count, "the count of repeat")
    if times is None:
        return null(STRING)
    times = max(times, 0)

    def compute(value: Datum) -> Datum:
        fits("repeat", [value], lambda size: size * times, lambda: pc.multiply(lengths(value), float(times)))
        return pc.binary_repeat(value, times)

    return apply(compute, as_text(text), fallible=True)


def _padded(kernel: Compute, name: str) -> Callable[..., Node]:
    def build(text: Node, width: Node, pad: Node | None = None) -> Node:
        size = whole(width, f"the width of {name}")
        fill = " " if pad is None else literal_text(pad, f"the padding of {name}")
        if size is None or fill is None:
            return null(STRING)
        most = size * len(fill.encode())
        if len(fill) > 1:
            raise Refusal(f"the padding of {name}, {fill!r}, is more than one character", "pad with one character")
        cut = _sliced(as_text(text), 0, max(size, 0))

        def compute(value: Datum) -> Datum:
            rows = 1 if isinstance(value, pa.Scalar) else len(value)
            fits(name, [value], lambda now: now + rows * most, lambda: pc.add(lengths(value), float(most)))
            return kernel(value, width=size, padding=fill)

        return apply(compute, cut, fallible=True) if fill and size > 0 else cut

    return build


TABLE.function("lpad", arguments=(2, 3))(_padded(pc.utf8_lpad, "lpad"))
TABLE.function("rpad", arguments=(2, 3))(_padded(pc.utf8_rpad, "rpad"))

_TRIMS: dict[str, Compute] = {"BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}


def trim(text: Node, side: str, characters: Node | None) -> Node:
    """TRIM, LTRIM, RTRIM: the given characters off one side or both; just the space where none are given."""
    letters = " " if characters is None else literal_text(characters, "the characters of trim")
    if letters is None:
        return null(STRING)
    text, kernel = as_text(text), _TRIMS[side]
    return apply(lambda value: kernel(value, characters=letters), text) if letters else text


@TABLE.function("ltrim", arguments=(1, 2))
def ltrim(first: Node, second: Node | None = None) -> Node:
    return trim(first, "LEADING", None) if second is None else trim(second, "LEADING", first)


@TABLE.function("rtrim", arguments=(1, 2))
def rtrim(first: Node, second: Node | None = None) -> Node:
    return trim(first, "TRAILING", None) if second is None else trim(second, "TRAILING", first)


@TABLE.function("btrim", arguments=(1, 2))
def btrim(text: Node, characters: Node | None = None) -> Node:
    return trim(text, "BOTH", characters)


@TABLE.function("concat", arguments=(1, None))
def concat(*texts: Node) -> Node:
    """One after the other; null if any is."""
    if any(text.type == BINARY for text in texts):
        raise Refusal("concat is given binary values", "cast them to string")
    return apply(_concatenated, *(as_text(text) for text in texts))


def _concatenated(*values: Datum) -> Datum:
    fits("concat", values, lambda size: size, lambda: reduce(pc.add, map(lengths, values)))
    return pc.binary_join_element_wise(*values, "")


@TABLE.function("concat_ws", arguments=(2, None))
def concat_ws(separator: Node, *texts: Node) -> Node:
    """Nulls among the texts are left out; a null separator gives null."""
    return apply(on_arrays(_join), as_text(separator), *(as_text(text) for text in texts))


def _join(separator: pa.Array, first: pa.Array, *others: pa.Array) -> pa.Array:
    # Arrow leaves out a row altogether when all of its texts are null: such a row is joined from one empty text.
    given = (first, *others, *[separator] * len(others))
    fits("concat_ws", given, lambda size: size, lambda: reduce(pc.add, map(lengths, given)))
    nothing = first.is_null()
    for text in others:
        nothing = pc.and_(nothing, text.is_null())
    first = pc.if_else(nothing, "", first)
    return pc.binary_join_element_wise(first, *others, separator, null_handling="skip")


def _search(kernel: Compute, name: str) -> Callable[[Node, Node], Node]:
    def build(text: Node, part: Node) -> Node:
        needle = literal_text(part, f"what {name} looks for")
        return null(BOOL) if needle is None else apply(lambda value: kernel(value, needle), as_text(text))

    return build


TABLE.function("startswith", arguments=(2, 2))(_search(pc.starts_with, "startswith"))
TABLE.function("endswith", arguments=(2, 2))(_search(pc.ends_with, "endswith"))
TABLE.function("contains", arguments=(2, 2))(_search(pc.match_substring, "contains"))


@TABLE.function("replace", arguments=(2, 3))
def replace(text: Node, search: Node, new: Node | None = None) -> Node:
    """Every place, left to right; unchanged when what is looked for is ""."""
    old = literal_text(search, "what replace looks for")
    by = "" if new is None else literal_text(new, "what replace puts in")
    if old is None or by is None:
        return null(STRING)
    more = len(by.encode()) - len(old.encode())

    def compute(value: Datum) -> Datum:
        def sizes() -> Datum:
            return pc.add(lengths(value), pc.multiply(pc.count_substring(value, old).cast(DOUBLE), float(more)))

        fits("replace", [value], lambda size: size * max(1, 1 + more), sizes)
        return pc.replace_substring(value, old, by)

    return apply(compute, as_text(text)) if old else as_text(text)


@TABLE.function("regexp_like", "rlike", "regexp", arguments=(2, 2))
def regexp_like(text: Node, pattern: Node) -> Node:
    """Whether the pattern is found anywhere."""
    regex = checked_regex(pattern, "the pattern of regexp_like")
    return null(BOOL) if regex is None else apply(lambda value: pc.match_substring_regex(value, regex), as_text(text))


@TABLE.function("regexp_replace", arguments=(3, 3))
def regexp_replace(text: Node, pattern: Node, new: Node) -> Node:
    """Every match; in the new text ``$1`` is the first group, as in Java."""
    regex = checked_regex(pattern, "the pattern of regexp_replace")
    by = literal_text(new, "what regexp_replace puts in")
    if regex is None or by is None:
        return null(STRING)
    rewrite = _rewrite(by)
    try:
        pc.replace_substring_regex(pa.scalar(""), regex, rewrite)
    except pa.ArrowInvalid as error:
        raise Refusal(f"the replacement {by!r} is refused: {error}", "name groups the pattern has, as $1") from error
    groups, added = by.count("$"), len(by.encode())

    def compute(value: Datum) -> Datum:
        def sizes() -> Datum:
            found = pc.multiply(pc.count_substring_regex(value, regex).cast(DOUBLE), float(added))
            return pc.add(pc.multiply(lengths(value), float(1 + groups)), found)

        rows = 1 if isinstance(value, pa.Scalar) else len(value)
        fits("regexp_replace", [value], lambda size: size * (1 + groups + added) + rows * added, sizes)
        return pc.replace_substring_regex(value, regex, rewrite)

    return apply(compute, as_text(text))


def _rewrite(java: str) -> str:
    r"""Java's replacement text in RE2's terms: ``$1`` is ``\1``, and a backslash takes the next character plainly.

    >>> print(_rewrite("[$1]\\$"))
    [\1]$
    """
    parts = re.findall(r"\\.|\$[0-9]|[\\$]|[^\\$]+", java, flags=re.DOTALL)
    if any(part in ("\\", "$") for part in parts):
        raise Refusal(f"the replacement {java!r} ends a $ or a backslash with nothing", "write \\$ for a dollar sign")
    turned = (
        "\\" + part[1] if part[0] == "$" else (part[1:] if part[0] == "\\" else part).replace("\\", "\\\\")
        for part in parts
    )
    return "".join(turned)


@TABLE.function("regexp_extract", arguments=(2, 3))
def regexp_extract(text: Node, pattern: Node, group: Node | None = None) -> Node:
    """The group (by default the first; 0 is the whole) of the first match; "" where nothing matches."""
    regex = checked_regex(pattern, "the pattern of regexp_extract")
    index = 1 if group is None else whole(group, "the group of regexp_extract")
    if regex is None or index is None:
        return null(STRING)
    # A lazy run before and a greedy one after leave the first match, in a group of its own, and its groups behind it.
    around = f"^(?s:.*?)({regex})(?s:.*)$"
    try:
        if not 0 <= index <= 8:
            raise pa.ArrowInvalid("groups go from 0 to 8")
        pc.replace_substring_regex(pa.scalar(""), around, f"\\{index + 1}")
    except pa.ArrowInvalid as error:
        raise Refusal(f"group {index} of {regex!r} is refused: {error}", "name a group the pattern has") from error

    def compute(value: pa.Array) -> pa.Array:
        found = pc.replace_substring_regex(value, around, f"\\{index + 1}")
        return pc.if_else(pc.match_substring_regex(value, regex), found, pa.scalar("", STRING))

    return apply(compute, as_text(text))


def joined(*texts: Node) -> Node:
    """``a || b || c``."""
    return null(STRING) if any(text.type == NULL for text in texts) else concat(*texts)
