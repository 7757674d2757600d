"""SQL text -> what computes it: parsed, lowered to operations on arrays, within limits, on a stack of its own."""

import pyarrow as pa
from sqlglot import exp

from ddflow.aside import aside
from ddflow.errors import ExpressionError, cut
from ddflow.expressions.casts import convert
from ddflow.expressions.columns import Columns
from ddflow.expressions.evaluate import SqlRun
from ddflow.expressions.lower import Lowering
from ddflow.expressions.node import Node, Refusal
from ddflow.expressions.parse import Parsed, parse, too_deep
from ddflow.expressions.room import fresh
from ddflow.expressions.types import BOOL, NULL

_MOST = 600  # characters of what was found, in a message


def compile_sql(text: str, schema: pa.Schema, boolean: bool, what: str) -> tuple[SqlRun, tuple[str, ...]]:
    """What computes an expression, and the columns that it reads.  See `ddflow.expressions.compile`."""
    shown = f"{what} {cut(text)}"
    asked, columns = f"cannot compile {shown}", Columns(schema)

    def made() -> tuple[Parsed, Node]:
        fresh()
        try:
            parsed = parse(text)
            parsed.check_quoted(schema.names)
            node = Lowering(columns).lower(parsed.tree)
            return parsed, convert(node, BOOL) if boolean and node.type == NULL else node
        except Refusal as refusal:
            raise ExpressionError(asked, cut(refusal.found, _MOST), cut(refusal.remedy, 4 * _MOST)) from refusal
        except RecursionError as error:
            raise ExpressionError(asked, too_deep().found, too_deep().remedy) from error
        except pa.ArrowException as error:
            raise ExpressionError(
                asked, cut(str(error), _MOST), "docs/expressions.md lists what is supported"
            ) from error

    parsed, node = aside(made)
    plain = parsed.tree.unnest()
    bare = isinstance(plain, exp.Column) and len(plain.parts) == 1
    names = tuple(columns.names)
    fields = [schema.field(name) for name in names]
    run = SqlRun(node, fields, bare, parsed.nested, f"cannot compute {shown}")
    return run, names
