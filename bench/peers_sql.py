"""Run the peers DuckDB and Polars. DuckDB takes the whole input at once, or steps against a state table.

Both peers keep the contract that `peers` describes. Each engine gets the fastest query we found; bench/README.md names
slower queries. Inputs and results are Arrow tables, which pass through the API of each engine. Neither engine keeps the
order of input rows by itself, so the query numbers the rows. A second contender without ordered output shows the cost
of the order.

>>> import pyarrow as pa
>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 1, 1]})
>>> for tables in (duckdb_whole(events, 1), duckdb_steps(events, 1), polars_whole(events)):
...     print([tuple(row.values()) for table in tables for row in table.to_pylist()])
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from workloads import slices

if TYPE_CHECKING:
    import duckdb

# The last event of each (key, time), with the next time of its key (null for the last time).
WINNERS = """
    numbered as (select key, val, time, row_number() over () as seq from events),
    followed as (select *, lead(time) over (partition by key order by seq) as later from numbered),
    winners as (select * from followed where later is distinct from time)"""

# The retractions and assertions of the winning events, computed with the old values of their keys.
UPDATES = """
    select key, old as val, time as _time, (-1)::bigint as _diff from resolved
    where old is not null and old is distinct from val
    union all
    select key, val, time, 1::bigint from resolved
    where val is not null and val is distinct from old"""


def connect(threads: int, path: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Open a file or memory with ``threads`` threads."""
    import duckdb

    connection = duckdb.connect(path)
    connection.execute(f"set threads = {threads}")
    return connection


def duckdb_whole(events: pa.Table, threads: int, ordered: bool = True) -> list[pa.Table]:
    """Run one query over all events. ``lag`` gives each winning event the value of its key's previous winner."""
    with connect(threads) as connection:
        connection.register("events", events)
        query = f"""with {WINNERS},
            resolved as materialized (
                select *, lag(val) over (partition by key order by seq) as old from winners)
            {UPDATES} {"order by _time, _diff" if ordered else ""}"""
        return [connection.sql(query).to_arrow_table()]


def duckdb_steps(events: pa.Table, threads: int, step: int = 100_000) -> list[pa.Table]:
    """Do the engine's work in SQL: each step reads old values from a state table and merges into it."""
    first = events.schema.field("key").type
    with connect(threads) as connection:
        name = "bigint" if pa.types.is_integer(first) else "varchar"
        connection.execute(f"create table state (key {name}, val {name})")
        return [one_step(connection, piece) for piece in slices(events, step)]


def one_step(connection: duckdb.DuckDBPyConnection, events: pa.Table) -> pa.Table:
    """Resolve events against the table ``state (key, val)``, update it, and return the updates."""
    connection.register("events", events)
    connection.execute(f"""create or replace temp table resolved as with {WINNERS}
        select winners.key, winners.val, time, later,
            case when row_number() over of_key = 1 then state.val else lag(winners.val) over of_key end as old
        from winners left join state using (key)
        window of_key as (partition by winners.key order by seq)""")
    updates = connection.sql(f"{UPDATES} order by _time, _diff").to_arrow_table()
    # A deleted key stays with a null value, which counts as absent. Deleting the row of the key made later steps
    # slower.
    connection.execute("""merge into state using (select key, val from resolved where later is null) as new
        on state.key = new.key
        when matched then update set val = new.val
        when not matched then insert values (new.key, new.val)""")
    return updates


def polars_whole(events: pa.Table, ordered: bool = True) -> list[pa.Table]:
    """Run one lazy query: sort stably by key, compare neighbours, then merge retractions and assertions by arrival.

    The number of threads is ``POLARS_MAX_THREADS`` when polars is first imported.
    """
    import polars as pl

    key, val, time, old, at = (pl.col(name) for name in ("key", "val", "time", "old", "at"))
    frame = pl.from_arrow(events)
    assert isinstance(frame, pl.DataFrame)
    winners = (
        frame.lazy()
        .with_row_index("at")
        .sort(key, maintain_order=True)
        .filter(key.ne_missing(key.shift(-1)) | time.ne_missing(time.shift(-1)))
    )
    resolved = winners.with_columns(old=pl.when(key.eq_missing(key.shift(1))).then(val.shift(1))).filter(
        old.ne_missing(val)
    )
    if ordered:
        resolved = resolved.sort(at).collect().lazy()
    out, into = (resolved.filter(side.is_not_null()) for side in (old, val))
    place = at.cast(pl.Int64) * 2
    leaving = out.select(key, val=old, _time=time, _diff=pl.lit(-1, pl.Int64), place=place)
    entering = into.select(key, val, _time=time, _diff=pl.lit(1, pl.Int64), place=place + 1)
    merged = leaving.merge_sorted(entering, "place") if ordered else pl.concat((leaving, entering))
    return [merged.drop("place").collect().to_arrow()]


# The last event of each (key, time), and the row number of the previous such event of its key in this step.
WIDE_WINNERS = """create or replace temp table winners as
    with numbered as (select *, row_number() over () as seq from events),
    followed as (select *, lead(time) over (partition by key order by seq) as later from numbered)
    select *, lag(seq) over (partition by key order by seq) as before from followed where later is distinct from time"""


def duckdb_wide_steps(events: pa.Table, threads: int, step: int = 100_000) -> list[pa.Table]:
    """Do the same as `duckdb_steps` for rows with any columns between ``key`` and ``time``, without deletes.

    A window function copies every column of its input. So only row numbers pass through window functions, and a join
    brings back the old row. Two other ways were slower: rows as structs, and a ``lag`` of every column.
    """
    sql = _statements([name for name in events.column_names if name != "time"])
    tables = []
    with connect(threads) as connection:
        connection.register("events", events.slice(0, 0))
        connection.execute("create table state as select * exclude (time) from events")
        for piece in slices(events, step):
            connection.register("events", piece)
            connection.execute(WIDE_WINNERS)
            connection.execute(sql["resolve"])
            tables.append(connection.sql(sql["updates"]).to_arrow_table())
            connection.execute(sql["merge"])
    return tables


def _statements(names: list[str]) -> dict[str, str]:
    """Return the SQL statements of a step for rows with these columns, which include ``key``."""
    quoted = [f'"{name}"' for name in names]
    rest = [name for name in quoted if name != '"key"']

    def listed(columns: list[str], prefix: str = "") -> str:
        return ", ".join(prefix + name for name in columns)

    old = [f'"old {name}"' for name in names]
    renamed = ", ".join(f"held.{name} as {was}" for name, was in zip(quoted, old, strict=True))
    back = ", ".join(f"{was} as {name}" for name, was in zip(quoted, old, strict=True))
    return {
        "resolve": f"""create or replace temp table resolved as
            select winners.*, {renamed} from winners left join (
                select 0 as of_row, * from state semi join winners using (key)
                union all select seq, {listed(quoted)} from winners where later is not null) as held
            on held.key = winners.key and held.of_row = coalesce(winners.before, 0)
            where held.key is null or ({listed(rest, "winners.")}) is distinct from ({listed(rest, "held.")})""",
        "updates": f"""
            select {back}, time as _time, (-1)::bigint as _diff from resolved where "old key" is not null
            union all select {listed(quoted)}, time, 1::bigint from resolved
            order by _time, _diff""",
        "merge": f"""merge into state using (
                select {listed(quoted)} from resolved
                qualify row_number() over (partition by key order by seq desc) = 1) as new
            on state.key = new.key
            when matched then update set {", ".join(f"{name} = new.{name}" for name in rest)}
            when not matched then insert values ({listed(quoted, "new.")})""",
    }
