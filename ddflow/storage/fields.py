"""Define the types of fields in JSON records. Encode records, and check them strictly when they are decoded.

Guarantees: a decoded record has exactly the fields of its class. Each value has the declared type and is in the
declared range.

>>> class Example(StrictRecord, frozen=True):
...     rows: Annotated[int, Meta(ge=0, le=2)]
>>> decode_record(Decoder(Example), encode_record(Example(2)), "m").rows
2
>>> decode_record(Decoder(Example), b'{"rows": 3}', "m")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: m: it is not a record of this format: Expected `int` <= 2 - at `$.rows`; it is damaged, ...
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from ddflow.errors import CommandFix, CorruptState, ErrorText, shorten
from ddflow.time import CLOSED, NEVER

T = TypeVar("T")
I64: Final = 2**63 - 1
RESTORE_REMEDY: Final = ErrorText(
    "it is damaged, or ddflow did not write it; restore it from a backup, or go back with ", CommandFix("rollback")
)

Natural = Annotated[int, Meta(ge=0, le=I64)]
"""A count or a size, at least 0."""
Positive = Annotated[int, Meta(ge=1, le=I64)]
Instant = Annotated[int, Meta(ge=NEVER, le=CLOSED)]
"""A time of a flow, or any other int64."""
INSTANTS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999 in unix milliseconds. Years before 1970 are valid, because a clock may be wrong.
"""
Moment = Annotated[int, Meta(ge=INSTANTS[0], le=INSTANTS[1])]
"""A time that a clock showed, in unix milliseconds."""
Word = Annotated[int, Meta(ge=0)]
"""A uint64.

The code that reads the field checks that the value is below 2**64, because msgspec cannot express this bound.
"""
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""A value of 16 bytes as hex digits, such as an xxh3-128 checksum."""
HexOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32})?\Z")]
"""A value of 16 bytes as hex digits, or "" if there is no value."""
Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
NonceOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")]
FILE: Final = r"[0-9a-f]{16}-[0-9]{1,12}\.(?:arrow|json|parquet)"
"""The pattern of a blob's name: the nonce of its writer, a number, and the kind of file."""
FileName = Annotated[str, Meta(pattern=rf"\A{FILE}\Z")]
Path = Annotated[str, Meta(max_length=1 << 16, pattern=r"\A[^\0]*\Z")]

REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors that decoding may raise."""


class StrictRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A base class for records that accept no undeclared fields.

    The types of the fields limit how deep the JSON of a record can be nested. Only a field of type ``Any`` can be
    nested as deep as the decoder allows.
    """


encode_record: Final[Callable[[Any], bytes]] = msgspec.json.encode
"""Encode a record as JSON text. O(bytes).

Raises `UnicodeEncodeError` for a text with a lone surrogate, which has no UTF-8.
"""


def decode_record(decoder: Decoder[T], data: Any, what: str, remedy: str = RESTORE_REMEDY) -> T:
    """Decode a record from JSON text. O(bytes).

    ``what``: the place of the text, for messages. Raises `CorruptState`, with the path to the field, for a text that is
    not exactly a record of this class. The checks are strict because later code allocates, slices and maps memory by
    the numbers in a record. A checksum would not detect a manipulated number. NaN, infinity, a number beyond float64, a
    lone surrogate and invalid UTF-8 are refused. If an object contains a name twice, the last value counts.
    """
    try:
        return decoder.decode(data)
    except REFUSALS as error:
        raise make_record_error(what, error, remedy) from None


def convert_record(given: Any, kind: type[T], what: str) -> T:
    """Convert decoded JSON values to a record. Raises the errors of `decode_record`."""
    try:
        return msgspec.convert(given, kind)
    except REFUSALS as error:
        raise make_record_error(what, error) from None


def make_record_error(what: str, error: Exception, remedy: str = RESTORE_REMEDY) -> CorruptState:
    """Build the error for data that is not a record of the expected format."""
    return CorruptState(what, f"it is not a record of this format: {shorten(str(error))}", remedy)
