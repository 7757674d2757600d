"""SQL text -> what computes it: parsed, lowered to operations on arrays, within limits, on a stack of its own.

Invariant: equal texts over equal columns come to equal nodes, so those of short texts are kept, and a state that is
opened, read or checked again compiles nothing. Nodes hold nothing of their runs; a refusal is not kept, and what names
the place in its message is not part of what is kept.

>>> run, names = compile_sql("n + 1 > 2", pa.schema({"id": pa.string(), "n": pa.int64()}), True, "filter of 'a'")
>>> run(pa.record_batch({"n": [1, 2, None]})).to_pylist(), names
([False, True, None], ('n',))
"""

from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from ddflow.aside import aside
from ddflow.errors import ExpressionError, cut
from ddflow.expressions.casts import convert
from ddflow.expressions.columns import Columns
from ddflow.expressions.evaluate import SqlRun
from ddflow.expressions.lower import Lowering
from ddflow.expressions.node import Node, Refusal
from ddflow.expressions.parse import parse, too_deep
from ddflow.expressions.room import fresh
from ddflow.expressions.types import BOOL, NULL

_MOST = 600  # characters of what was found, in a message
_KEPT, _SHORT = 256, 1000
"""How many are kept, of at most how many characters: a long one may take megabytes."""


class _Made(NamedTuple):
    """A compiled text: its node, the columns that it reads, whether it is only a column, and its number of levels."""

    node: Node
    names: tuple[str, ...]
    bare: bool
    nested: int


def compile_sql(text: str, schema: pa.Schema, boolean: bool, what: str) -> tuple[SqlRun, tuple[str, ...]]:
    """Compile an expression, and list the columns that it reads.  See `ddflow.expressions.compile`."""
    shown = f"{what} {cut(text)}"
    asked = f"cannot compile {shown}"
    try:
        made = (_compile_text if len(text) <= _SHORT else _compile_text.__wrapped__)(text, schema, boolean)
    except Refusal as refusal:
        raise ExpressionError(asked, cut(refusal.found, _MOST), cut(refusal.fix, 4 * _MOST)) from refusal
    except RecursionError as error:
        raise ExpressionError(asked, too_deep().found, too_deep().fix) from error
    except pa.ArrowException as error:
        raise ExpressionError(asked, cut(str(error), _MOST), "docs/expressions.md lists what is supported") from error
    fields = [schema.field(name) for name in made.names]
    return SqlRun(made.node, fields, made.bare, made.nested, f"cannot compute {shown}"), made.names


@lru_cache(_KEPT)
def _compile_text(text: str, schema: pa.Schema, boolean: bool) -> _Made:
    """Parse and lower a text.  Nodes hold no state of a run, so equal texts share one."""

    def compile_fresh() -> _Made:
        fresh()
        parsed, columns = parse(text), Columns(schema)
        parsed.check_quoted(schema.names)
        node = Lowering(columns).lower(parsed.tree)
        plain = parsed.tree.unnest()
        bare = isinstance(plain, exp.Column) and len(plain.parts) == 1
        right = convert(node, BOOL) if boolean and node.type == NULL else node
        return _Made(right, tuple(columns.names), bare, parsed.nested)

    return aside(compile_fresh)
