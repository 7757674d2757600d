"""A query over DataFrames: the differences of its answer, by `spark_bridge.run`.

Invariant: it is that run and nothing else, of a flow with an input for each frame, by its name and in its columns, and
one output, the query. A keyed frame is upserts, a bare one is rows that are appended. Whether a column may be null is
not asked, because Spark derives that from how a frame was made, and the frames of two epochs may be made in two ways;
rows are looked at.

>>> from ddflow.plan.inputs.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("by_city", flow.sql("select city, count(*) n from people group by city"))
>>> print(explain(flow))
output by_city: city string, n int64
└─ count(by=['city'], name='n')    rows move to their [city]; kept by [city]
   └─ project(['city'])
      └─ input people    rows move to their [id]; kept by [id]
            id int64, city string
            key=['id']
<BLANKLINE>
stage 0: people, project; sums 0 by [city] of project
stage 1: sums 0 by [city] of project; count; by_city
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from ddflow.connectors.api import TableSink
from ddflow.engine.flow import Flow
from ddflow.errors import SpecError
from ddflow.partitions.stages import cut
from ddflow.plan.collection import walk_inputs
from ddflow.plan.inputs.spec import KeyedFrame
from ddflow.plan.text.explain import Explained
from spark_bridge.epochs import run
from spark_bridge.state_options import KEEP
from spark_bridge.types import arrow_schema

OUT: Final = "out"
"""The name of a query's output in a state."""


def sql(
    query: str,
    frames: Mapping[str, KeyedFrame | DataFrame],
    partitions: int | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    outputs: str | None = None,
    close: bool = False,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
    part_cache: str | int | None = "auto",
    keep: int = KEEP,
    sinks: Mapping[str, TableSink] | None = None,
    give_up_after: str | None = "10min",
) -> DataFrame:
    """Run a query over batch DataFrames and return a DataFrame of the updates of its answer.

    Without ``state``, the frame is lazy and the answer's updates lead there from nothing. With ``state``, the rows of
    the frames are one more epoch of it, committed when this returns, and the DataFrame has the updates of that epoch.

    Parameters
    ----------
    query : str
        In Spark's SQL, as `Flow.sql` takes it.
    frames : mapping of str to KeyedFrame or DataFrame
        The tables of the query: ``dd.keyed(df, dd.Upsert(key=...))`` for upserts, a bare frame for rows that are
        appended.  All of them each time; one without new rows is empty.
    partitions, state, epoch, outputs, close, memory, trust, part_cache, keep, sinks, give_up_after
        As in `run`.  In a state the output is called "out".

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query, ``_time`` and ``_diff``.

    Raises
    ------
    ExpressionError
        For a query that cannot be maintained, and for a table that has no frame, with their place.
    SpecError
        For frames that are no mapping, a frame that the query does not ask, and a spec that does not fit its frame.
    NotArrow, SchemaMismatch
        For what is no DataFrame; for a column of a type that cannot travel.
    DdflowError
        What `run` raises.

    Examples
    --------
    ::

        tables = {"orders": dd.keyed(orders, dd.Upsert(key="id")), "clicks": clicks}
        query = "select o.city, count(*) n from orders o join clicks c on c.order = o.id group by o.city"
        spark_bridge.sql(query, tables, state="by_city.state").show()
    """
    flow, given = planned(query, frames)
    runs: Any = run  # which of its forms it is shows when it is called
    options: dict[str, Any] = {"outputs": outputs, "close": close, "memory": memory, "trust": trust}
    options |= {"sinks": sinks, "give_up_after": give_up_after}
    ran = runs(flow, given, partitions, state=state, epoch=epoch, part_cache=part_cache, keep=keep, **options)
    out: DataFrame = ran[OUT]
    return out


def explain(flow: Flow | str, frames: Mapping[str, KeyedFrame | DataFrame] | None = None) -> Explained:
    """Describe the operators of a flow like `Flow.explain`, and below them the stages that run them.

    Parameters
    ----------
    flow : Flow or str
        A flow, or a query over ``frames``.
    frames : mapping of str to KeyedFrame or DataFrame, optional
        Of a query, as in `sql`.

    Returns
    -------
    str
        Several lines.  A prompt and a notebook show them as they are.

    Raises
    ------
    SpecError, ExpressionError, NotArrow, SchemaMismatch
        As `sql`; `SpecError` for a flow without outputs.

    Notes
    -----
    It runs nothing.  Between two stages lies one shuffle.
    """
    of = planned(flow, frames)[0] if isinstance(flow, str) else flow
    stages = cut(of)
    return Explained(f"{of.explain()}\n\n{stages}")


def planned(query: str, frames: Any) -> tuple[Flow, dict[str, Any]]:
    """Plan a query; return its flow and the frame of each of its inputs. Runs nothing. Raises the errors of `sql`."""
    if not isinstance(frames, Mapping):
        found = f"the frames are a {type(frames).__name__}"
        raise SpecError("a query on Spark", found, "give {table: DataFrame, or dd.keyed(DataFrame, dd.Upsert(...))}")
    flow, given = Flow(), dict[str, Any]()
    for name, each in frames.items():
        frame = given[name] = each.rows if isinstance(each, KeyedFrame) else each
        schema = rows(arrow_schema(frame))
        if isinstance(each, KeyedFrame):
            flow.upserts(name, schema, each.spec)
        else:
            flow.updates(name, schema)
    answer = flow.sql(query)
    asked = walk_inputs([answer])
    unasked = [name for name, input in flow.inputs.items() if input not in asked]
    if unasked:
        raise SpecError("a query on Spark", f"it asks nothing of {unasked}", "leave these frames out")
    flow.output(OUT, answer)
    return flow, given


def rows(schema: pa.Schema) -> pa.Schema:
    """Make every column of a frame nullable."""
    return pa.schema([field.with_nullable(True) for field in schema])
