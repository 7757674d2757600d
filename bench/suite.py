"""Run selected jobs of all benches in a quarter of an hour, and write one report with a picture.

Each entry of `OURS` and `PEERS` is a bench command line, so you can also run it alone, with more rounds. The suite
itself adds no measurements and no figures to those of the benches. Every round goes through all benches, so a busy
minute of the machine affects only a few samples of each bench.

Limits: the suite has 15 minutes on two quiet cores. So peers run once or twice. Two long benches are left out: `large`
at full length, and `spark` with all its peers.

>>> len({bench.name for bench, _ in lines()}) > 8, max(job.rounds for _, job in lines())
(True, 3)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import machine
import report
import runner
from report import Row
from rich.console import Console
from runner import Timed

OURS: Final = (
    "upsert --only workload=w1 contender=ddflow,ddflow-2t line=upsert --rounds 3",
    "upsert --only workload=w1 contender=ddflow line=filter,count,filter+count,backfill,epoch --rounds 3",
    "upsert --only workload=w3,wide contender=ddflow line=upsert --rounds 3",
    "latency --rounds 1 --set steps=1000",
    "get --only line=input,sum,top state=memory --rounds 1",
    "growth --only keys=10000,1000000 budget=None --rounds 1",
    "scaling --only line=upsert step=100000,1000000 budget=None --rounds 1 --set turns=3",
    "footprint --only workload=w1,w3 --rounds 1",
    "durable --only keys=1000000 --rounds 1",
    "receipts --only partitions=1000 --rounds 1",
    "operators --only line=upsert,count,aggregates,floats,top-10,join --rounds 1",
    "large --only workload=w1l contender=ddflow step=1000000 events=20000000 --set events=4000000 --rounds 1",
)
"""Command lines that run only ddflow; `compare` runs the same lines on two commits."""
PEERS: Final = (
    "upsert --only workload=w1 contender=limit line=upsert --rounds 3",
    "upsert --only workload=w1 contender=numpy,duckdb-steps-1t line=upsert --rounds 1",
    "upsert --only workload=w3 contender=numpy,duckdb-1t line=upsert --rounds 1",
    "large --only workload=w1l contender=rocksdict step=1000000 --set events=4000000 --rounds 1",
    "startup --rounds 1",
    "noops --rounds 1 --set commits=100",
    "spark --only workload=w1s contender=ddflow,floor,join --rounds 1",
)


def lines(words: Sequence[str] = (*OURS, *PEERS)) -> list[Timed]:
    """Return the jobs that these command lines choose."""
    found = list[Timed]()
    for line in words:
        name, *rest = line.split()
        bench = runner.load(name)
        found += [(bench, job) for job in runner.choose(bench, runner.parser(bench).parse_args(rest))]
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the suite and store its report; return 1 if an answer was wrong."""
    line = argparse.ArgumentParser(prog="python bench all", description="Run a quarter of an hour of all benches.")
    line.add_argument("--out", type=Path, default=report.RESULTS, metavar="DIR", help="the folder for the report")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, 150)
    may = options.no_save or runner.may_store(progress)
    done = runner.measured(lines(), progress)
    if done is None:
        return 1
    about, rows, failures = done
    results = [{"bench": name, "machine": about, "results": found} for name, found in rows.items()]
    for result in json.loads(json.dumps(results)):
        report.show(out, runner.load(result["bench"]), result)
    if failures:
        return 1
    if may and not options.no_save:
        path = keep(options.out, json.loads(json.dumps(results)))
        progress.print(f"written: {path}, and .md and .png beside it", soft_wrap=True, highlight=False)
    return 0


def keep(folder: Path, results: Sequence[Row]) -> Path:
    """Write the results as JSON, their tables as one Markdown page, and all panels as one picture."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    parts, panels = [f"# Report\n\n{machine.line(results[0]['machine'])}\n"], list[Callable[[Any], None]]()
    for result in results:
        bench = runner.load(result["bench"])
        parts.append(report.markdown(bench, result, head=False))
        panels += bench.panels(result)
    path.with_suffix(".md").write_text("\n".join(parts))
    if panels:
        report.draw(panels, path.with_suffix(".png"))
    return path
