"""The kernels that ddflow calls, by what goes in and what comes out.

An elementwise kernel makes an array of an array, a chunked one of a chunked one, a scalar of scalars alone.
"""

from typing import Any, Protocol, TypeVar, overload

from pyarrow import Array, ChunkedArray, RecordBatch, Scalar, Table

_Values = TypeVar("_Values", bound=Array | ChunkedArray | Scalar)

class Expression:
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...

class _Elementwise(Protocol):
    @overload
    def __call__(self, first: Array, /, *more: Any, **options: Any) -> Array: ...
    @overload
    def __call__(self, first: ChunkedArray, /, *more: Any, **options: Any) -> ChunkedArray: ...
    @overload
    def __call__(self, first: str, second: Array, /, *more: Any, **options: Any) -> Array: ...
    @overload
    def __call__(self, first: Array | Scalar | str, /, *more: Any, **options: Any) -> Array | Scalar: ...

class _Aggregate(Protocol):
    def __call__(self, values: Array | ChunkedArray, /, *more: Any, **options: Any) -> Scalar: ...

abs: _Elementwise
abs_checked: _Elementwise
add: _Elementwise
add_checked: _Elementwise
and_: _Elementwise
and_kleene: _Elementwise
and_not: _Elementwise
ascii_trim: _Elementwise
ascii_trim_whitespace: _Elementwise
assume_timezone: _Elementwise
binary_join: _Elementwise
binary_join_element_wise: _Elementwise
binary_length: _Elementwise
binary_repeat: _Elementwise
binary_slice: _Elementwise
bit_wise_and: _Elementwise
bit_wise_not: _Elementwise
bit_wise_or: _Elementwise
bit_wise_xor: _Elementwise
case_when: _Elementwise
cast: _Elementwise
ceil: _Elementwise
coalesce: _Elementwise
count_substring: _Elementwise
count_substring_regex: _Elementwise
cumulative_sum: _Elementwise
day: _Elementwise
day_of_week: _Elementwise
day_of_year: _Elementwise
divide: _Elementwise
divide_checked: _Elementwise
ends_with: _Elementwise
equal: _Elementwise
exp: _Elementwise
extract_regex: _Elementwise
find_substring: _Elementwise
floor: _Elementwise
floor_temporal: _Elementwise
greater: _Elementwise
greater_equal: _Elementwise
hour: _Elementwise
if_else: _Elementwise
index_in: _Elementwise
invert: _Elementwise
is_finite: _Elementwise
is_inf: _Elementwise
is_in: _Elementwise
is_nan: _Elementwise
is_null: _Elementwise
is_valid: _Elementwise
iso_week: _Elementwise
less: _Elementwise
less_equal: _Elementwise
list_value_length: _Elementwise
ln: _Elementwise
local_timestamp: _Elementwise
log10: _Elementwise
log2: _Elementwise
make_struct: _Elementwise
match_substring: _Elementwise
match_substring_regex: _Elementwise
max_element_wise: _Elementwise
min_element_wise: _Elementwise
minute: _Elementwise
month: _Elementwise
multiply: _Elementwise
multiply_checked: _Elementwise
negate: _Elementwise
negate_checked: _Elementwise
not_equal: _Elementwise
or_: _Elementwise
or_kleene: _Elementwise
power: _Elementwise
quarter: _Elementwise
replace_substring: _Elementwise
replace_substring_regex: _Elementwise
replace_with_mask: _Elementwise
round: _Elementwise
run_end_decode: _Elementwise
second: _Elementwise
split_pattern_regex: _Elementwise
sqrt: _Elementwise
starts_with: _Elementwise
string_is_ascii: _Elementwise
struct_field: _Elementwise
subtract: _Elementwise
subtract_checked: _Elementwise
trunc: _Elementwise
utf8_length: _Elementwise
utf8_lower: _Elementwise
utf8_lpad: _Elementwise
utf8_ltrim: _Elementwise
utf8_reverse: _Elementwise
utf8_rpad: _Elementwise
utf8_rtrim: _Elementwise
utf8_slice_codeunits: _Elementwise
utf8_trim: _Elementwise
utf8_trim_whitespace: _Elementwise
utf8_upper: _Elementwise
year: _Elementwise

all: _Aggregate
any: _Aggregate
index: _Aggregate
max: _Aggregate
min: _Aggregate
sum: _Aggregate

def sort_indices(input: Array | ChunkedArray | RecordBatch | Table, sort_keys: Any = ...) -> Array: ...
def rank(input: Array | ChunkedArray, sort_keys: Any = ..., *, tiebreaker: str = ...) -> Array: ...
def fill_null(values: _Values, fill_value: Any) -> _Values: ...
def unique(array: Any) -> Any: ...
def list_element(lists: Any, index: int) -> Any: ...
def list_parent_indices(lists: Any) -> Any: ...
