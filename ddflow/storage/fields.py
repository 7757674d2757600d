"""Fields: the types of what a JSON record may hold, and how bytes from a store become a record.

Invariant: a record that comes out of `decode_record` has exactly the fields of its struct, each of its type and in its
range; anything else is `CorruptState` with the path to it. Checksums detect accidents, not intent, and what a number
says may be allocated, sliced or mapped later. A struct bounds the depth of what it reads, so only a field of type
``Any`` can nest as deep as the decoder allows. It does not know what fields mean.

Of two fields of one name in an object the last one counts. NaN, infinity, a number beyond float64, half of a pair of
surrogates and bytes that are no UTF-8 are refused.

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
"""A number of things, or of a thing."""
Positive = Annotated[int, Meta(ge=1, le=I64)]
Instant = Annotated[int, Meta(ge=NEVER, le=CLOSED)]
"""A time, or any int64."""
INSTANTS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""Unix milliseconds of the years 1 to 9999; a clock may well say a time before 1970."""
Moment = Annotated[int, Meta(ge=INSTANTS[0], le=INSTANTS[1])]
"""The time of a clock, in unix milliseconds."""
Word = Annotated[int, Meta(ge=0)]
"""A uint64; readers check that it is less than 2**64, a bound that msgspec cannot express."""
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""16 bytes, such as an xxh3-128."""
HexOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32})?\Z")]
"""The same, or "" for none."""
Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
NonceOrNone = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")]
FILE: Final = r"[0-9a-f]{16}-[0-9]{1,12}\.(?:arrow|json|parquet)"
"""The name of a blob: the nonce of its writer, a number, its kind."""
FileName = Annotated[str, Meta(pattern=rf"\A{FILE}\Z")]
Path = Annotated[str, Meta(max_length=1 << 16, pattern=r"\A[^\0]*\Z")]

REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding."""


class StrictRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A record: its fields, and no others."""


def encode_record(record: Any) -> bytes:
    """Encode a record as JSON text.  O(bytes).  Raises `UnicodeEncodeError` for half of a pair of surrogates."""
    return msgspec.json.encode(record)


def decode_record(decoder: Decoder[T], data: Any, what: str, remedy: str = MEND) -> T:
    """Decode a record from JSON text.  ``what``: its place, for messages.  O(bytes).  Raises `CorruptState`."""
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
