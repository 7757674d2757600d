"""Run Pathway on the join and the sums of the bench `operators`, in a separate interpreter.

Pathway is not among the locked packages, so ``DDFLOW_BENCH_PATHWAY`` names an interpreter that has Pathway. Install it
with ``python -m venv there; there/bin/pip install pathway``. Without the variable the contender is left out. Pathway
gets precomputed differences, with one time for the load and one time for each step. The timing covers the whole run,
load included, but not reading files and making tables.

>>> from operators_work import Size
>>> [sum(table["__diff__"].to_pylist()) for table in differences(Size(keys=50, rows=20, step=10)).values()]
[50, 5]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from operators_work import Size

INTERPRETER = os.environ.get("DDFLOW_BENCH_PATHWAY")


def measured(size: Size) -> dict[str, Any]:
    """Run the program below on the given number of rows; raise AssertionError if it fails."""
    from operators_work import contents

    with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
        for name, table in differences(size).items():
            pq.write_table(table, Path(folder) / f"{name}.parquet")
        command = [str(INTERPRETER), __file__, folder]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        answer = contents([pq.read_table(Path(folder) / "out.parquet")])
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "rows": size.keys + size.customers + size.rows, "checksum": answer}


def differences(size: Size) -> dict[str, pa.Table]:
    """Return a table of differences for each input, over load and steps, with ``__time__`` and ``__diff__``."""
    from operators_work import CUSTOMERS, ORDERS, changes, loaded

    steps = [loaded(size), *(changes(size, number) for number in range(size.steps))]
    keys = {ORDERS: ("id", size.keys), CUSTOMERS: ("of", size.customers)}
    return {name: _differences([each[name] for each in steps], *of) for name, of in keys.items()}


def _differences(steps: Iterable[pa.Table], key: str, keys: int) -> pa.Table:
    parts, held = list[pa.Table](), dict[str, Any]()
    for number, table in enumerate(steps):
        names = [name for name in table.column_names if name not in (key, "time")]
        held = held or {name: np.full(keys, -1) for name in names}
        at = np.unique(table[key].to_numpy())
        old = {name: held[name][at] for name in names}
        for name in names:
            held[name][table[key].to_numpy()] = table[name].to_numpy()
        new = {name: held[name][at] for name in names}
        changed = np.logical_or.reduce([old[name] != new[name] for name in names])
        for values, diff, rows in ((old, -1, changed & (old[names[0]] >= 0)), (new, 1, changed)):
            columns = {key: at[rows], **{name: values[name][rows] for name in names}}
            more = {"__time__": np.full(rows.sum(), 2 * number + 2), "__diff__": np.full(rows.sum(), diff)}
            parts.append(pa.table(columns | more))
    return pa.concat_tables(parts)


def program(folder: Path) -> None:
    """Run the query over the differences in a folder.

    Print how many seconds it took, and write the answer to a file.
    """
    import pathway as pw

    def table(name: str, key: str, *columns: str) -> Any:
        made = {key: pw.column_definition(primary_key=True, dtype=int)}
        made |= {column: pw.column_definition(dtype=int) for column in columns}
        frame = pq.read_table(folder / f"{name}.parquet").to_pandas()
        return pw.debug.table_from_pandas(frame, schema=pw.schema_builder(made, name=name))

    orders, customers = table("orders", "id", "customer", "amount"), table("customers", "of", "city")
    both = orders.join(customers, orders.customer == customers.of).select(customers.city, orders.amount)
    out = both.groupby(pw.this.city).reduce(pw.this.city, n=pw.reducers.count(), s=pw.reducers.sum(pw.this.amount))
    held: dict[int, dict[str, int]] = {}

    def change(key: Any, row: dict[str, int], time: int, is_addition: bool) -> None:
        if is_addition:
            held[row["city"]] = dict(row)
        elif held.get(row["city"]) == row:
            del held[row["city"]]

    pw.io.subscribe(out, on_change=change)
    begun = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    took = time.perf_counter() - begun
    pq.write_table(pa.Table.from_pylist(list(held.values())).select(["city", "n", "s"]), folder / "out.parquet")
    print(json.dumps({"seconds": took}))


if __name__ == "__main__":
    program(Path(sys.argv[1]))
