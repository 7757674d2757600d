"""What a step returns: one Arrow table an output, and the verdicts.

Invariant: a step is a mapping of exactly the flow's outputs (and those that ``stale=`` adds), each a table of the
collection's columns, then ``_time`` and ``_diff``, sorted by time, retractions of a key before its assertion; tables
never change afterwards and own their memory.

>>> from ddflow.columns.schema import empty, updates_schema
>>> step = Step({"v": empty(updates_schema(pa.schema({"v": pa.int64()}), pa.int64()))}, Verdicts.of({}), 5)
>>> step["v"].schema.names, len(step), step.frontier
(['v', '_time', '_diff'], 1, 5)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NoReturn, Self

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.dataflow.verdicts import Verdicts
from ddflow.errors import NoSuchOutput, SpecError, cut
from ddflow.terminal import counted, html_table

SHOWN: Final = 10
"""Updates of an output, and columns, that a notebook shows; and characters of a value."""
COLUMNS: Final = 20
CHARACTERS: Final = 60


class Step(Mapping[str, pa.Table]):
    """The result of a call: a mapping of each output's name to its updates.

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
        self.waits: tuple[Callable[[int, float | None], int], int] | None = None

    @classmethod
    def join(cls, steps: Sequence[Self]) -> Self:
        """Make one of the steps of an epoch, one or more, in their order.

        Parameters
        ----------
        steps : sequence of Step
            Of one engine.

        Returns
        -------
        Step
            All their updates, their verdicts together, and the frontier of the last.
        """
        last = steps[-1]
        if len(steps) == 1:
            return last
        tables = {name: pa.concat_tables([each[name] for each in steps if name in each]) for name in last}
        out = cls(tables, Verdicts.add_up([each.verdicts for each in steps]), last.frontier)
        out.waits = last.waits
        return out

    def committed(self, timeout: float | None = None) -> int:
        """Wait until the call is committed.  Any thread may.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        int
            The number of its epoch.

        Raises
        ------
        SpecError
            For a state in memory; for an engine that commits only when `Engine.flush` is called, without a ``timeout``.
        TimeoutError
            If it is not committed in time.
        EngineClosed
            If the engine was closed before.
        DdflowError
            What the commit raised.

        Notes
        -----
        With ``commit_every="call"`` a call is committed when it returns.
        """
        if self.waits is None:
            found = "the engine's state is in memory"
            raise SpecError("wait for a commit", found, "open the flow with a state: flow.open('state/orders')")
        wait, epoch = self.waits
        return wait(epoch, timeout)

    def __getitem__(self, name: str) -> pa.Table:
        return self._tables[name] if name in self._tables else no_output(name, self._tables)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def _repr_html_(self) -> str:
        """Render the first updates of each output, and the verdicts, for a notebook."""
        return "".join(rows_html(name, table) for name, table in self._tables.items()) + self.verdicts._repr_html_()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {table.num_rows:,} updates" for name, table in self._tables.items())
        return f"Step({sizes}; {self.verdicts})"


def no_output(name: object, known: Iterable[str]) -> NoReturn:
    """Raise `NoSuchOutput`, a `KeyError` as mappings raise it.  O(names)."""
    raise NoSuchOutput("take an output", f"there is no output {name!r:.200}", did_you_mean(str(name), known))


def rows_html(name: str, table: pa.Table) -> str:
    """Render the first rows of a table for a notebook, under its name. O(rows and columns shown)."""
    names = [*table.column_names[: COLUMNS - 2], *table.column_names[COLUMNS - 2 :][-2:]]
    rows = zip(*(texts(table.column(each)) for each in names), strict=True)
    rest = [f"... and {table.num_rows - SHOWN:,} more"] if table.num_rows > SHOWN else []
    if len(names) < table.num_columns:
        rest.append(f"{table.num_columns - len(names):,} columns are left out")
    return html_table(f"{name}: {counted(table.num_rows, 'update')}", [names, *map(list, rows)], rest)


def texts(column: pa.ChunkedArray, most: int = SHOWN) -> Iterator[str]:
    """Format the first values of a column and shorten long ones. O(those)."""
    for value in column.slice(0, most):
        try:
            plain = value.as_py()
        except (OverflowError, ValueError):  # Python's calendar ends with the year 9999
            plain = value
        yield "null" if plain is None else cut(str(plain), CHARACTERS)
