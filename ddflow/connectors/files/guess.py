"""Guess the types of text columns from the first rows of all files.

Each file allows a set of types for a column. The guess is the first type of ``LADDER`` that all files allow, so the
order of the files does not matter. `parse_texts_strictly` decides if a text is a valid value.

Rules: an integer beyond int64 becomes uint64 or a decimal. A fraction with more than 15 significant digits becomes a
decimal. A column with ``007``, ``+1`` or ``0x10`` stays text, because such values may be codes. A column is text if it
has no values, or if a value fits only text.

>>> [str(guess_type([possible_types(pa.array([text]))])) for text in ("2024-02-29", "2024-02-30", "2024-02-29 12:00")]
['date32[day]', 'string', 'timestamp[us]']
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.files.kinds import USUAL, ValueFormats
from ddflow.connectors.files.spelling import is_parsable_as

SAMPLE: Final = 2 << 20
"""Number of bytes at the beginning of a text file from which ddflow guesses types.

Files are also parsed in blocks of this size.
"""
DIGITS: Final = 38
"""Precision of guessed decimals."""

MOMENTS: Final = (pa.date32(), *(pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("us", "ns")))
_WHOLE: Final = (pa.int64(), pa.uint64(), pa.decimal128(DIGITS, 0))
_FRACTIONS: Final = tuple(pa.decimal128(DIGITS, scale) for scale in range(1, DIGITS + 1))
LADDER: Final = (*_WHOLE, pa.float64(), *_FRACTIONS, pa.bool_(), pa.time64("us"), *MOMENTS, pa.string())
"""Types to guess, in order of preference: the first type that fits is the guess."""

Possible = frozenset[pa.DataType]
"""Types that fit all values of a column in the first rows of a file.  Lists and objects of JSON allow only one type."""
ANY: Final[Possible] = frozenset(LADDER)
"""Possible types of a column without values."""


def guess_type(heads: Iterable[Possible]) -> pa.DataType | None:
    """Choose the type of a column from the types that fit in each file; None if no type fits in all files.  O(heads).

    ``heads``: the possible types in the first rows of each file.

    >>> monday, tuesday = possible_types(pa.array(["7"])), possible_types(pa.array(["007"]))
    >>> guess_type([monday, tuesday]) == guess_type([tuesday, monday]) == pa.string()
    True
    """
    told = [head for head in heads if head != ANY]
    if not told:
        return pa.string()
    left = frozenset.intersection(*told)
    if not left:
        return _unify_nested_types(told)
    return next((kind for kind in LADDER if kind in left), None) or generalize_json_type(next(iter(left)))


def possible_types(
    texts: pa.Array, kinds: Sequence[pa.DataType] = LADDER, shortest: bool = False, forms: ValueFormats = USUAL
) -> Possible:
    """Return the types among ``kinds`` that fit all texts of a column; null fits every type.  O(n).

    ``shortest``, ``forms``: as for `parse_texts_strictly`.

    >>> columns = (["1", None, "-7"], ["1", "2.5e3"], ["007", "7"], ["1.50"])
    >>> [str(guess_type([possible_types(pa.array(texts))])) for texts in columns]
    ['int64', 'double', 'string', 'double']
    """
    present = texts.drop_null()
    if not len(present):
        return ANY
    few = present.slice(0, 1)
    found = [
        kind
        for kind in kinds
        if kind not in _FRACTIONS
        and is_parsable_as(few, kind, shortest, forms)
        and is_parsable_as(present, kind, shortest, forms)
    ]
    return frozenset(
        [*found, *(_list_fitting_decimals(forms.normalize(present, pa.float64())) if kinds is LADDER else ())]
    )


def widen_type_to_fit(kind: pa.DataType, text: str, forms: ValueFormats = USUAL) -> pa.DataType:
    """Return the type to declare for a column if its guessed type is ``kind`` and a later text does not fit.

    The returned type fits this text and all earlier values. If no other type fits, the returned type is text.

    >>> widen_type_to_fit(pa.int64(), "1.5"), widen_type_to_fit(pa.int64(), "007"), widen_type_to_fit(pa.date32(),
    ...     "2024-02-29 10:00")
    (DataType(double), DataType(string), TimestampType(timestamp[us]))
    """
    wider: tuple[pa.DataType, ...] = ()
    if pat.is_integer(kind):
        wider = (pa.float64(), pa.decimal128(DIGITS, 0))
    elif pat.is_decimal(kind):
        wider = tuple(pa.decimal128(DIGITS, scale) for scale in range(kind.scale, DIGITS - kind.precision + kind.scale))
    elif pat.is_date(kind):
        wider = MOMENTS
    return next((each for each in wider if is_parsable_as(pa.array([text]), each, forms=forms)), pa.string())


def _list_fitting_decimals(texts: pa.Array) -> Sequence[pa.DataType]:
    """List the decimal types with a scale above 0 that can hold all texts.

    The smallest scale is the length of the longest fraction.
    """
    if not pc.all(pc.match_substring_regex(texts, r"^-?(0|[1-9]\d*)(\.\d+)?$")).as_py():
        return ()
    point, length = pc.find_substring(texts, "."), pc.binary_length(texts)
    whole = pc.if_else(pc.less(point, 0), length, point)
    fraction = pc.max(pc.subtract(length, whole)).as_py() - 1
    signs = pc.starts_with(texts, "-").cast(pa.int32())
    return _FRACTIONS[max(fraction, 1) - 1 : max(DIGITS - pc.max(pc.subtract(whole, signs)).as_py(), 0)]


def generalize_json_type(kind: pa.DataType, null: pa.DataType | None = None) -> pa.DataType:
    """Generalize a type that Arrow's JSON reader inferred, so that later lines also fit the type.

    Timestamps become text. The null type becomes the type ``null``, which is text by default.
    """
    if pat.is_struct(kind):
        return pa.struct([field.with_type(generalize_json_type(field.type, null)) for field in kind])
    if pat.is_list(kind):
        return pa.list_(generalize_json_type(kind.value_type, null))
    return (null or pa.string()) if pat.is_null(kind) else pa.string() if pat.is_timestamp(kind) else kind


def _unify_nested_types(heads: Sequence[Possible]) -> pa.DataType | None:
    """Merge list or object types into one type with all members; a mix of number types becomes double."""
    kinds = [kind for head in heads for kind in head]
    if len(kinds) != len(heads) or not all(map(pat.is_nested, kinds)):
        return None
    try:
        return generalize_json_type(
            pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive").field(0).type
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
