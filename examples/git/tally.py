"""Checks that are counted one by one: two multisets of rows are compared, each row is a check that held or did not.

Invariant: ``held`` and ``asked`` of a tally are sums over distinct rows of min and max of how often the row is in the
expected and in the actual table, so that a missing, an extra and a doubled row each cost exactly one check, and ``held
== asked`` exactly when the two tables are equal up to the order of their rows. A check that only walks the expected
rows does not see an extra one, and a comparison of sorted tables says no more than "different". It does not know where
the rows come from.

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
"""How many rows that failed a tally keeps, to be shown."""


@dataclass
class Tally:
    """How many checks of one kind were asked, how many held, and the first few that did not."""

    held: int = 0
    asked: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take the other's checks in; of the failures the first `EXAMPLES` stay."""
        self.held += other.held
        self.asked += other.asked
        self.failures += other.failures[: EXAMPLES - len(self.failures)]


class Checks(dict[str, Tally]):
    """The tallies of a run by what they check, in the order first asked."""

    def add(self, what: str, tally: Tally) -> None:
        """Add to the tally called ``what``; one without a single check is kept too, so that a reader sees the 0."""
        self.setdefault(what, Tally()).add(tally)

    @property
    def total(self) -> Tally:
        """All of them as one, without the failures."""
        return Tally(sum(tally.held for tally in self.values()), sum(tally.asked for tally in self.values()))

    @property
    def good(self) -> bool:
        """Whether all of them held."""
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
    """Compare two tables as multisets of rows, each distinct row as often as it is in either.

    Columns are matched by name and cast to the expected types; the columns of ``actual`` that are not expected are
    left out.  O(n) time and memory in the rows of both.
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
    """One check: two values are equal."""
    if expected == found:
        return Tally(1, 1)
    return Tally(0, 1, [f"expected {what} {expected}, found {found}"])


def _marked(table: pa.Table, expected: int, found: int) -> pa.Table:
    """The rows with two more int64 columns, that say whose they are."""
    ones = {"_expected": expected, "_found": found}
    for name, one in ones.items():
        table = table.append_column(name, pa.repeat(pa.scalar(one, pa.int64()), table.num_rows))
    return table


def _worded(row: Mapping[str, Any], columns: list[str]) -> str:
    data = ", ".join(f"{name}={row[name]!r}" for name in columns)
    return f"expected {row['_expected_sum']}, found {row['_found_sum']}: {data}"
