"""Measure sources and sinks, and compare each of them with the bare libraries that it uses.

Each line of the report has one or two peers, which get the same bytes as ddflow in the same run. All results are
compared with rows that were computed independently. Lines that decode messages are compared by CPU time, because load
from other programs affects CPU time less than wall time. Lines that wait for a cluster, server or disk are compared by
wall time.

Limits: the Kafka broker is the mock of librdkafka. The mock shares two cores with its reader, and is slower than a real
broker.

>>> {job.what["line"] for job in BENCH.jobs()} == set(LINES)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import connectors_feeds
import connectors_sinks
from connectors_work import digest, last, orders, upserted
from report import Bar, Row, at_least, within
from runner import Bench, Job

MERGE, APPEND = 1.2, 1.5
MOST_MS = 50.0


class Line(NamedTuple):
    """A line of the bench.

    The line processes ``rows`` rows. ``peers`` maps each peer to the share of the peer's rate that ddflow must reach.

    ``by``: the figure that is compared.  ``rounds``: the number of rounds.
    """

    about: str
    rows: int
    peers: dict[str, float]
    by: str = "seconds"
    rounds: int = 3


LINES = {
    "debezium": Line(
        "Debezium's messages to upserts", 300_000, {"from_json": 0.8, "json.loads": 5.0}, "cpu_seconds", rounds=5
    ),
    "kafka": Line("Debezium's messages in a topic to committed differences", 200_000, {"consume": 0.5}),
    "slot": Line("a slot of Postgres to committed differences", 100_000, {"pg_recvlogical": 0.8}),
    "delta upsert": Line("merged into 500 k rows", 100_000, {"merge": 1 / MERGE}),
    "delta changelog": Line("appended", 100_000, {"append": 1 / APPEND}),
    "iceberg upsert": Line("merged into 50 k rows", 10_000, {"upsert": 1 / MERGE}),
    "iceberg changelog": Line("appended", 100_000, {"append": 1 / APPEND}),
    "duckdb upsert": Line("merged into 500 k rows", 100_000, {"merge": 1 / MERGE}),
    "duckdb changelog": Line("appended", 100_000, {"append": 1 / APPEND}),
    "postgres upsert": Line("merged into 500 k rows; the peer copies into a staging table", 100_000, {"copy": 0.7}),
    "visible": Line("1,000 changes, from their commit until Postgres shows them", 100_000, {}),
}
ENOUGH = {"postgres upsert": 50_000}
"""A rate in rows a second that is enough to meet the target, even if the peer is faster."""


class Connectors(Bench):
    """The bench that runs each line with ddflow and with each peer."""

    name = "connectors"
    about = "Sources and sinks beside the bare libraries."
    sampled = ("seconds", "cpu_seconds")
    quick = ({}, {"rows": "2000"})
    columns = (
        "line {line} | contender {contender} | rows {rows:,} | s {seconds!m:.2f} | CPU s {cpu_seconds!m:.2f} | "
        "k rows/s {thousands:,.0f} | of the peer's rate {over_peer:.2f} | batch or epoch ms {step_ms:.0f} | "
        "bytes a message {bytes:.0f} | peak MB {peak!M:.0f}"
    )

    def jobs(self) -> list[Job]:
        return [
            Job({"line": name, "contender": contender, "rows": line.rows}, rounds=line.rounds)
            for name, line in LINES.items()
            for contender in ("ddflow", *line.peers)
        ]

    def measure(self, line: str, contender: str, rows: int) -> dict[str, Any]:
        """Take one sample; raise AssertionError if a source or target has wrong rows."""
        if line == "visible":
            return connectors_sinks.visible(rows)
        if line in ("debezium", "kafka", "slot"):
            taken: dict[str, Any] = getattr(connectors_feeds, line)(contender, rows)
            return taken
        target, mode = line.split()
        return connectors_sinks.delivered(target, mode, contender, rows)

    def question(self, job: Job) -> dict[str, Any] | None:
        """Return the job if `expected` must compute the job's rows, else None.

        A bare consumer keeps no rows to compare; `connectors_feeds.kafka` counts its messages.
        """
        line, contender = job.what["line"], job.what["contender"]
        return None if contender == "consume" or line == "visible" else dict(job.what)

    def expected(self, line: str, contender: str, rows: int) -> str:
        """Return the checksum of the expected rows."""
        if line in ("debezium", "kafka", "slot"):
            return upserted(orders(rows)) if line == "debezium" else digest(last(orders(rows)))
        return connectors_sinks.expected(line.split()[1], rows)

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        row = super().row(job, samples)
        row |= {"rows": samples[0]["rows"], "thousands": row.pop(self.rate) * 1e3}
        return {**row, "step_ms": median(each["step_ms"] for each in samples)}

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add the ratio of ddflow's rate to the rate of the first peer."""
        found = {(row["line"], row["contender"]): row for row in rows}
        for row in rows:
            line = LINES[row["line"]]
            peer = found.get((row["line"], next(iter(line.peers), "")))
            if row["contender"] == "ddflow" and peer is not None:
                row["over_peer"] = _rate(row, line) / _rate(peer, line)
        return rows

    def notes(self, result: Row) -> list[str]:
        """Describe the lines."""
        return ["; ".join(f"*{name}*: {line.about}" for name, line in LINES.items()) + "."]

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets).

        A bar requires a share of a peer's rate, a number of rows a second, or a time in milliseconds.
        """
        rows = {(row["line"], row["contender"]): row for row in result["results"]}
        for name, line in LINES.items():
            ours = rows.get((name, "ddflow"))
            if ours is None:
                continue
            if not line.peers:
                yield within(name, f"{ours['step_ms']:.1f} ms", f"{MOST_MS:.0f} ms", ours["step_ms"] <= MOST_MS)
            for peer, part in line.peers.items():
                if (other := rows.get((name, peer))) is None:
                    continue
                bar = at_least(name, _rate(ours, line), peer, _rate(other, line), part, digits=(3, 3))
                enough = ENOUGH.get(name)
                if enough is not None and ours["thousands"] * 1e3 >= enough:
                    bar = bar._replace(wanted=f"or {enough:,} rows/s", met=True)
                yield bar


def _rate(row: Row, line: Line) -> float:
    """Return the rate in million rows a second."""
    return float(row["rows"] / median(row[line.by]) / 1e6)


BENCH = Connectors()
