"""Compare two multisets of rows, and count one check for each row.

`compare` makes a `Tally`; `Checks` collects them. Each missing, extra or repeated row fails exactly one check.

>>> expected = pa.table({"path": ["a", "b"], "_diff": [1, 1]})
>>> actual = pa.table({"_diff": [1, 1, 1], "path": ["b", "c", "b"]})
>>> tally = compare(expected, actual)
>>> tally.held, tally.asked
(1, 4)
>>> print(*sorted(tally.failures), sep="\\n")
expected 0, found 1: path='c', _diff=1
expected 1, found 0: path='a', _diff=1
expected 1, found 2: path='b', _diff=1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

EXAMPLES: Final = 5
"""Number of failed rows that a tally keeps as examples."""


@dataclass
class Tally:
    """The checks of one kind: the number of all checks, the number of checks that held, and the first failures.

    A row may occur more than once in the expected and in the actual table. For each distinct row, the larger of its two
    counts is added to ``asked``, and the smaller one to ``held``. So ``held == asked`` exactly if both tables have the
    same rows.
    """

    held: int = 0
    asked: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the checks of ``other``, and keep the first `EXAMPLES` failures."""
        self.held += other.held
        self.asked += other.asked
        self.failures += other.failures[: EXAMPLES - len(self.failures)]


class Checks(dict[str, Tally]):
    """The tallies of a run by name, in the order of their first use."""

    def add(self, what: str, tally: Tally) -> None:
        """Add a tally to the tally with the name ``what``.

        A tally without checks is kept too, so the report shows its 0.
        """
        self.setdefault(what, Tally()).add(tally)

    @property
    def total(self) -> Tally:
        """The sum of all tallies, without the failures."""
        return Tally(sum(tally.held for tally in self.values()), sum(tally.asked for tally in self.values()))

    @property
    def good(self) -> bool:
        """True if all checks held."""
        return self.total.held == self.total.asked

    @property
    def closing(self) -> str:
        """The closing line of a run.

        >>> checks = Checks()
        >>> checks.add("a", Tally(1234, 1234)); checks.closing
        'all 1,234 checks held'
        >>> checks.add("b", Tally(0, 1)); checks.closing
        '1,234 of 1,235 checks held, 1 did not'
        """
        held, asked = self.total.held, self.total.asked
        if held == asked:
            return f"all {asked:,} checks held"
        return f"{held:,} of {asked:,} checks held, {asked - held:,} did not"


def compare(expected: pa.Table, actual: pa.Table) -> Tally:
    """Compare two tables as multisets of rows.

    Columns are matched by name and cast to the expected types; other columns of ``actual`` are ignored. A loop over
    only the expected rows would not find extra rows; this comparison finds them. O(n) time and memory, for n rows in
    both tables together.
    """
    columns = expected.column_names
    sides = [_marked(expected, 1, 0), _marked(actual.select(columns).cast(expected.schema), 0, 1)]
    counted = pa.concat_tables(sides).group_by(columns).aggregate([("_expected", "sum"), ("_found", "sum")])
    wanted, found = counted["_expected_sum"], counted["_found_sum"]
    asked = pc.sum(pc.max_element_wise(wanted, found)).as_py() or 0
    held = pc.sum(pc.min_element_wise(wanted, found)).as_py() or 0
    wrong = counted.filter(pc.not_equal(wanted, found)).slice(0, EXAMPLES).to_pylist() if held < asked else []
    return Tally(held, asked, [_worded(row, columns) for row in wrong])


def equal(what: str, expected: object, found: object) -> Tally:
    """Compare two values, which counts as one check."""
    if expected == found:
        return Tally(1, 1)
    return Tally(0, 1, [f"expected {what} {expected}, found {found}"])


def _marked(table: pa.Table, expected: int, found: int) -> pa.Table:
    """Add two int64 columns that mark whether a row is expected or found."""
    ones = {"_expected": expected, "_found": found}
    for name, one in ones.items():
        table = table.append_column(name, pa.repeat(pa.scalar(one, pa.int64()), table.num_rows))
    return table


def _worded(row: Mapping[str, Any], columns: list[str]) -> str:
    data = ", ".join(f"{name}={row[name]!r}" for name in columns)
    return f"expected {row['_expected_sum']}, found {row['_found_sum']}: {data}"
