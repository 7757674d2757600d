"""Define functions of text for case, length, slices, padding, joining, searching and regular expressions.

Guarantees: positions and lengths count characters (code points), never bytes. The first position is 1. If an argument
is null, the result is null. As in Spark, a slice can begin before the text, and a text can get longer in upper case (ß
becomes SS). Replacement texts have Java's syntax.
Limits: patterns, widths and counts are literals, and are compiled once. Regular expressions have RE2's syntax.

>>> import pyarrow as pa
>>> from ddflow.expressions.functions.table import FUNCTIONS
>>> from ddflow.expressions.node import constant
>>> FUNCTIONS["substring"].call([constant(pa.scalar(v)) for v in ("abc", -5, 3)]).constant
<pyarrow.StringScalar: 'a'>
>>> FUNCTIONS["upper"].call([constant(pa.scalar("straße"))]).constant
<pyarrow.StringScalar: 'STRASSE'>
"""

import re
from collections.abc import Callable
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import cast_to_text
from ddflow.expressions.functions.table import (
    Take,
    build_integer_reader,
    build_regex_reader,
    build_text_reader,
    cast_argument_to_text,
    keep_argument,
    register_row_function,
    sql_function,
)
from ddflow.expressions.logic import read_text_literal
from ddflow.expressions.node import (
    Compute,
    Datum,
    Node,
    Refusal,
    accept_scalars,
    build_compute_node,
    byte_lengths,
    check_text_size,
    null,
)
from ddflow.expressions.types import BINARY, BOOL, DOUBLE, INT32, NULL, STRING

# Letters whose upper or lower case has several letters, or depends on the position in the word. Python, not Arrow,
# converts texts that contain these letters.
_ODD_UPPER = "[ßŉǰΐΰև\u1e96-\u1e9a\u1f50-\u1f56\u1f80-\u1fff\ufb00-\ufb17]"
_ODD_LOWER = "[İΣ]"


def _change_case(kernel: Compute, odd: str, python: Callable[[str], str]) -> Compute:
    def compute(array: pa.Array) -> pa.Array:
        result: pa.Array = kernel(array)
        if pc.all(pc.string_is_ascii(array), min_count=0).as_py():
            return result
        rare = pc.fill_null(pc.match_substring_regex(array, odd), False)
        texts = [python(text) for text in array.filter(rare).to_pylist()]
        return pc.replace_with_mask(result, rare, pa.array(texts, STRING))

    return accept_scalars(compute)


register_row_function(
    _change_case(pc.utf8_upper, _ODD_UPPER, str.upper), "upper", "ucase", takes=[cast_argument_to_text]
)
register_row_function(
    _change_case(pc.utf8_lower, _ODD_LOWER, str.lower), "lower", "lcase", takes=[cast_argument_to_text]
)
register_row_function(pc.utf8_reverse, "reverse", takes=[cast_argument_to_text])


@sql_function("length", "len", "char_length", "character_length", takes=[keep_argument])
def count_characters(value: Node) -> Node:
    """Count the characters of a text, or the bytes of a binary value."""
    if value.type == BINARY:
        return build_compute_node(lambda value: pc.binary_length(value).cast(INT32), value)
    return build_compute_node(lambda value: pc.utf8_length(value).cast(INT32), cast_to_text(value))


def _slice_text(text: Node, start: int, stop: int | None) -> Node:
    return build_compute_node(lambda value: pc.utf8_slice_codeunits(value, start, stop), text)


_POSITION, _LENGTH = build_integer_reader("the position of substring"), build_integer_reader("the length of substring")


@sql_function("substring", "substr", takes=[cast_argument_to_text, _POSITION, _LENGTH], least=2)
def substring(text: Node, start: int, length: int = 2**31 - 1) -> Node:
    """Return a slice that begins at a position. Positions count from 1, and negative positions count from the end.

    The slice can begin before the text.
    """
    if length <= 0:
        return _slice_text(text, 0, 0)
    if start >= 0:
        start = max(start - 1, 0)
        return _slice_text(text, start, start + length)
    return _slice_text(text, start, start + length if start + length < 0 else None)


@sql_function("left", takes=[cast_argument_to_text, build_integer_reader("the length of left")])
def slice_left(text: Node, size: int) -> Node:
    """Return the first ``size`` characters."""
    return _slice_text(text, 0, max(size, 0))


@sql_function("right", takes=[cast_argument_to_text, build_integer_reader("the length of right")])
def slice_right(text: Node, size: int) -> Node:
    """Return the last ``size`` characters."""
    return _slice_text(text, -size, None) if size > 0 else _slice_text(text, 0, 0)


@sql_function("repeat", takes=[cast_argument_to_text, build_integer_reader("the count of repeat")])
def repeat(text: Node, times: int) -> Node:
    """Repeat a text ``times`` times. If ``times`` is below 1, the result is ""."""
    times = max(times, 0)

    def compute(value: Datum) -> Datum:
        check_text_size(
            "repeat", [value], lambda size: size * times, lambda: pc.multiply(byte_lengths(value), float(times))
        )
        return pc.binary_repeat(value, times)

    return build_compute_node(compute, text, fallible=True)


def _register_padding_function(kernel: Callable[..., Datum], name: str) -> None:
    takes = [
        cast_argument_to_text,
        build_integer_reader(f"the width of {name}"),
        build_text_reader(f"the padding of {name}"),
    ]

    @sql_function(name, takes=takes, least=2)
    def build(text: Node, size: int, fill: str = " ") -> Node:
        most = size * len(fill.encode())
        if len(fill) > 1:
            raise Refusal(f"the padding of {name}, {fill!r}, is more than one character", "pad with one character")
        cut = _slice_text(text, 0, max(size, 0))

        def compute(value: Datum) -> Datum:
            rows = 1 if isinstance(value, pa.Scalar) else len(value)
            check_text_size(
                name, [value], lambda now: now + rows * most, lambda: pc.add(byte_lengths(value), float(most))
            )
            return kernel(value, width=size, padding=fill)

        return build_compute_node(compute, cut, fallible=True) if fill and size > 0 else cut


_register_padding_function(pc.utf8_lpad, "lpad")
_register_padding_function(pc.utf8_rpad, "rpad")

_TRIMS: dict[str, Compute] = {"BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}


def trim_text(text: Node, side: str, characters: Node | None) -> Node:
    """Compute TRIM, LTRIM, RTRIM: remove characters from one side or both.

    If no characters are given, spaces are removed.
    """
    letters = " " if characters is None else read_text_literal(characters, "the characters of trim")
    if letters is None:
        return null(STRING)
    text, kernel = cast_to_text(text), _TRIMS[side]
    return build_compute_node(lambda value: kernel(value, characters=letters), text) if letters else text


@sql_function("ltrim", takes=[keep_argument, keep_argument], least=1)
def ltrim(first: Node, second: Node | None = None) -> Node:
    return trim_text(first, "LEADING", None) if second is None else trim_text(second, "LEADING", first)


@sql_function("rtrim", takes=[keep_argument, keep_argument], least=1)
def rtrim(first: Node, second: Node | None = None) -> Node:
    return trim_text(first, "TRAILING", None) if second is None else trim_text(second, "TRAILING", first)


@sql_function("btrim", takes=[keep_argument, keep_argument], least=1)
def btrim(text: Node, characters: Node | None = None) -> Node:
    return trim_text(text, "BOTH", characters)


@sql_function("concat", takes=[keep_argument], more=True)
def concat(*texts: Node) -> Node:
    """Concatenate the texts. The result is null if any text is null."""
    if any(text.type == BINARY for text in texts):
        raise Refusal("concat has binary arguments", "cast them to string")
    return build_compute_node(_concatenate, *(cast_to_text(text) for text in texts))


def _concatenate(*values: Datum) -> Datum:
    check_text_size("concat", values, lambda size: size, lambda: reduce(pc.add, map(byte_lengths, values)))
    return pc.binary_join_element_wise(*values, "")


def _join_with_separator(separator: pa.Array, first: pa.Array, *others: pa.Array) -> pa.Array:
    """Join the texts that are not null. A null separator gives null."""
    # If all texts of a row are null, Arrow omits the row. So the nulls of such a row are replaced by one empty text.
    given = (first, *others, *[separator] * len(others))
    check_text_size("concat_ws", given, lambda size: size, lambda: reduce(pc.add, map(byte_lengths, given)))
    nothing = first.is_null()
    for other in others:
        nothing = pc.and_(nothing, other.is_null())
    first = pc.if_else(nothing, "", first)
    return pc.binary_join_element_wise(first, *others, separator, null_handling="skip")


register_row_function(
    accept_scalars(_join_with_separator), "concat_ws", takes=[cast_argument_to_text, cast_argument_to_text], more=True
)


def _register_search_function(kernel: Compute, *names: str, looks_for: Take) -> None:
    @sql_function(*names, takes=[cast_argument_to_text, looks_for], of_null=BOOL)
    def build(text: Node, needle: str) -> Node:
        return build_compute_node(lambda value: kernel(value, needle), text)


_register_search_function(pc.starts_with, "startswith", looks_for=build_text_reader("the search text of startswith"))
_register_search_function(pc.ends_with, "endswith", looks_for=build_text_reader("the search text of endswith"))
_register_search_function(pc.match_substring, "contains", looks_for=build_text_reader("the search text of contains"))
_register_search_function(
    pc.match_substring_regex,
    "regexp_like",
    "rlike",
    "regexp",
    looks_for=build_regex_reader("the pattern of regexp_like"),
)


@sql_function(
    "replace",
    takes=[
        cast_argument_to_text,
        build_text_reader("the search text of replace"),
        build_text_reader("the new text of replace"),
    ],
    least=2,
)
def replace(text: Node, old: str, by: str = "") -> Node:
    """Replace every occurrence of ``old``, from left to right. If ``old`` is "", the text stays unchanged."""
    more = len(by.encode()) - len(old.encode())

    def compute(value: Datum) -> Datum:
        def sizes() -> Datum:
            return pc.add(byte_lengths(value), pc.multiply(pc.count_substring(value, old).cast(DOUBLE), float(more)))

        check_text_size("replace", [value], lambda size: size * max(1, 1 + more), sizes)
        return pc.replace_substring(value, old, by)

    return build_compute_node(compute, text) if old else text


@sql_function(
    "regexp_replace",
    takes=[
        cast_argument_to_text,
        build_regex_reader("the pattern of regexp_replace"),
        build_text_reader("the new text of regexp_replace"),
    ],
)
def regexp_replace(text: Node, pattern: str, by: str) -> Node:
    """Replace every match of a pattern. As in Java, ``$1`` in the new text stands for the first group."""
    rewrite = _translate_replacement(by)
    try:
        pc.replace_substring_regex(pa.scalar(""), pattern, rewrite)
    except pa.ArrowInvalid as error:
        raise Refusal(
            f"the replacement {by!r} is invalid: {error}", "name groups of the pattern, such as $1"
        ) from error
    groups, added = by.count("$"), len(by.encode())

    def compute(value: Datum) -> Datum:
        def sizes() -> Datum:
            found = pc.multiply(pc.count_substring_regex(value, pattern).cast(DOUBLE), float(added))
            return pc.add(pc.multiply(byte_lengths(value), float(1 + groups)), found)

        rows = 1 if isinstance(value, pa.Scalar) else len(value)
        check_text_size("regexp_replace", [value], lambda size: size * (1 + groups + added) + rows * added, sizes)
        return pc.replace_substring_regex(value, pattern, rewrite)

    return build_compute_node(compute, text)


def _translate_replacement(java: str) -> str:
    r"""Translate a replacement text from Java to RE2.

    ``$1`` becomes ``\1``, and a backslash makes the next character literal.

    >>> print(_translate_replacement("[$1]\\$"))
    [\1]$
    """
    parts = re.findall(r"\\.|\$[0-9]|[\\$]|[^\\$]+", java, flags=re.DOTALL)
    if any(part in ("\\", "$") for part in parts):
        raise Refusal(
            f"the replacement {java!r} has a $ without a digit, or ends with a backslash", "write \\$ for a dollar sign"
        )
    turned = (
        "\\" + part[1] if part[0] == "$" else (part[1:] if part[0] == "\\" else part).replace("\\", "\\\\")
        for part in parts
    )
    return "".join(turned)


@sql_function(
    "regexp_extract",
    takes=[
        cast_argument_to_text,
        build_regex_reader("the pattern of regexp_extract"),
        build_integer_reader("the group of regexp_extract"),
    ],
    least=2,
)
def regexp_extract(text: Node, pattern: str, index: int = 1) -> Node:
    """Return a group of the first match, or "" if there is no match.

    By default, group 1 is returned. Group 0 is the complete match.
    """
    # The regular expression below consists of a lazy ``.*?``, the pattern, and a greedy ``.*``, so it matches the
    # complete text. The replacement is the requested group of the pattern's first match.
    around = f"^(?s:.*?)({pattern})(?s:.*)$"
    try:
        if not 0 <= index <= 8:
            raise pa.ArrowInvalid("groups go from 0 to 8")
        pc.replace_substring_regex(pa.scalar(""), around, f"\\{index + 1}")
    except pa.ArrowInvalid as error:
        raise Refusal(f"group {index} of {pattern!r} is invalid: {error}", "use a group of the pattern") from error

    def compute(value: pa.Array) -> pa.Array:
        found = pc.replace_substring_regex(value, around, f"\\{index + 1}")
        return pc.if_else(pc.match_substring_regex(value, pattern), found, pa.scalar("", STRING))

    return build_compute_node(compute, text)


def join_texts(*texts: Node) -> Node:
    """Concatenate ``a || b || c``."""
    return null(STRING) if any(text.type == NULL for text in texts) else concat(*texts)
