"""The peer for wide rows: DuckDB in steps against a state table, whatever columns stand between ``key`` and ``time``.

Invariant: the contract of ``peers.py`` with rows that are never deleted: a row that differs in any column from the one
its key had replaces it, one that does not is silent. Window functions carry every column of every row along, so only
row numbers go through them, and the old row is joined back in (structs and a ``lag`` of every column were slower).
Nothing here measures.

>>> events = pa.table({"key": [1, 1, 1], "name": ["a", "b", "b"], "time": [0, 1, 2]})
>>> [tuple(row.values()) for table in duckdb_wide_steps(events, 1) for row in table.to_pylist()]
[(1, 'a', 0, 1), (1, 'a', 1, -1), (1, 'b', 1, 1)]
"""

from __future__ import annotations

import pyarrow as pa
from peers_sql import connect
from workloads import slices

# The last event of each (key, time), and the row number of the one before it in this step.
WINNERS = """create or replace temp table winners as
    with numbered as (select *, row_number() over () as seq from events),
    followed as (select *, lead(time) over (partition by key order by seq) as later from numbered)
    select *, lag(seq) over (partition by key order by seq) as before from followed where later is distinct from time"""


def duckdb_wide_steps(events: pa.Table, threads: int, step: int = 100_000) -> list[pa.Table]:
    """What the engine does, in SQL: per step, old rows come from a state table, which is then merged into."""
    sql = _statements([name for name in events.column_names if name != "time"])
    tables = []
    with connect(threads) as connection:
        connection.register("events", events.slice(0, 0))
        connection.execute("create table state as select * exclude (time) from events")
        for piece in slices(events, step):
            connection.register("events", piece)
            connection.execute(WINNERS)
            connection.execute(sql["judge"])
            tables.append(connection.sql(sql["updates"]).to_arrow_table())
            connection.execute(sql["merge"])
    return tables


def _statements(names: list[str]) -> dict[str, str]:
    """The statements of a step for a row of these columns, ``key`` among them."""
    quoted = [f'"{name}"' for name in names]
    rest = [name for name in quoted if name != '"key"']

    def listed(columns: list[str], prefix: str = "") -> str:
        return ", ".join(prefix + name for name in columns)

    old = [f'"old {name}"' for name in names]
    renamed = ", ".join(f"held.{name} as {was}" for name, was in zip(quoted, old, strict=True))
    back = ", ".join(f"{was} as {name}" for name, was in zip(quoted, old, strict=True))
    return {
        "judge": f"""create or replace temp table judged as
            select winners.*, {renamed} from winners left join (
                select 0 as of_row, * from state semi join winners using (key)
                union all select seq, {listed(quoted)} from winners where later is not null) as held
            on held.key = winners.key and held.of_row = coalesce(winners.before, 0)
            where held.key is null or ({listed(rest, "winners.")}) is distinct from ({listed(rest, "held.")})""",
        "updates": f"""
            select {back}, time as _time, (-1)::bigint as _diff from judged where "old key" is not null
            union all select {listed(quoted)}, time, 1::bigint from judged
            order by _time, _diff""",
        "merge": f"""merge into state using (
                select {listed(quoted)} from judged
                qualify row_number() over (partition by key order by seq desc) = 1) as new
            on state.key = new.key
            when matched then update set {", ".join(f"{name} = new.{name}" for name in rest)}
            when not matched then insert values ({listed(quoted, "new.")})""",
    }
