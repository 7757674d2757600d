"""Define the field types of JSON records, and decode records with all checks.

Guarantees: a decoded record has exactly the fields of its struct, each of its type and in its range.

>>> class Example(StrictRecord, frozen=True):
...     rows: Annotated[int, Meta(ge=0, le=2)]
>>> decode_record(Decoder(Example), encode_record(Example(2)), "m").rows
2
>>> decode_record(Decoder(Example), b'{"rows": 3}', "m")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: m: it is no record of this format: Expected `int` <= 2 - at `$.rows`; it was not written ...
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from ddflow.errors import CommandFix, CorruptState, ErrorText, shorten
from ddflow.time import CLOSED, NEVER

T = TypeVar("T")
I64: Final = 2**63 - 1
MEND: Final = ErrorText(
    "it was not written by ddflow, or damaged; restore it from a copy, or go back with ", CommandFix("rollback")
)

Natural = Annotated[int, Meta(ge=0, le=I64)]
"""A count or a size."""
Positive = Annotated[int, Meta(ge=1, le=I64)]
Instant = Annotated[int, Meta(ge=NEVER, le=CLOSED)]
"""A time, or any int64."""
INSTANTS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""The unix milliseconds of the years 1 to 9999; a clock may be set before 1970."""
Moment = Annotated[int, Meta(ge=INSTANTS[0], le=INSTANTS[1])]
"""A clock's time, in unix milliseconds."""
Word = Annotated[int, Meta(ge=0)]
"""A uint64; readers check the bound 2**64, which msgspec cannot express."""
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""A value of 16 bytes, such as an xxh3-128."""
HexOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32})?\Z")]
"""The same, or "" for none."""
Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
NonceOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")]
FILE: Final = r"[0-9a-f]{16}-[0-9]{1,12}\.(?:arrow|json|parquet)"
"""The pattern of a blob's name: its writer's nonce, a number, its kind."""
FileName = Annotated[str, Meta(pattern=rf"\A{FILE}\Z")]
Path = Annotated[str, Meta(max_length=1 << 16, pattern=r"\A[^\0]*\Z")]

REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding."""


class StrictRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A record with its declared fields and no others.

    A struct bounds the depth of the JSON that it reads. Only a field of type ``Any`` can nest as deep as the decoder
    allows.
    """


def encode_record(record: Any) -> bytes:
    """Encode a record as JSON text.  O(bytes).  Raises `UnicodeEncodeError` for a lone surrogate."""
    return msgspec.json.encode(record)


def decode_record(decoder: Decoder[T], data: Any, what: str, remedy: str = MEND) -> T:
    """Decode a record from JSON text.  O(bytes).

    ``what``: the place of the text, for messages.  Raises `CorruptState`, with the path to the field, for anything that
    is not exactly such a record: a checksum detects accidents, not intent, and later code allocates, slices and maps by
    these numbers. NaN, infinity, a number beyond float64, a lone surrogate and invalid UTF-8 are refused. If an object
    has a name twice, the last value counts.
    """
    try:
        return decoder.decode(data)
    except REFUSALS as error:
        raise make_record_error(what, error, remedy) from None


def convert_record(given: Any, kind: type[T], what: str) -> T:
    """Convert plain values of JSON to a record.  Raises as `decode_record` does."""
    try:
        return msgspec.convert(given, kind)
    except REFUSALS as error:
        raise make_record_error(what, error) from None


def make_record_error(what: str, error: Exception, remedy: str = MEND) -> CorruptState:
    """Build the error for data that is no record."""
    return CorruptState(what, f"it is no record of this format: {shorten(str(error))}", remedy)
