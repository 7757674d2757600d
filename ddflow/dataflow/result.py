"""What a step returns: one Arrow table an output, and the verdicts.

Invariant: a step is a mapping of exactly the flow's outputs (and those that ``stale=`` adds), each a table of the
collection's columns, then ``_time`` and ``_diff``, sorted by time, retractions of a key before its assertion; tables
never change afterwards and own their memory.

>>> from ddflow.columns.schema import empty, updates_schema
>>> step = Step({"v": empty(updates_schema(pa.schema({"v": pa.int64()}), pa.int64()))}, Verdicts.of({}), 5)
>>> step["v"].schema.names, len(step), step.frontier
(['v', '_time', '_diff'], 1, 5)
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from ddflow.dataflow.verdicts import Verdicts


class Step(Mapping[str, pa.Table]):
    """What a call returns: a mapping of each output's name to its updates.

    Each value is a `pyarrow.Table` of the row's columns, then ``_time`` (int64, or the type of the time column) and
    ``_diff`` (int64), sorted by time, with the retractions of a key before its assertion.

    Attributes
    ----------
    verdicts : Verdicts
        Of the events resolved in this call.
    frontier : int
        The least time still open.
    """

    def __init__(self, tables: Mapping[str, pa.Table], verdicts: Verdicts, frontier: int) -> None:
        self._tables = tables
        self.verdicts, self.frontier = verdicts, frontier

    def __getitem__(self, name: str) -> pa.Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {table.num_rows:,} updates" for name, table in self._tables.items())
        return f"Step({sizes}; {self.verdicts})"
