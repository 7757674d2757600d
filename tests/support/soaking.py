"""Run a soak: tests in random order for some minutes, then a report of finished and missing tests.

This pytest plugin is active with ``DDFLOW_SOAK=1``; ``DDFLOW_MINUTES=60`` sets the limit, without it there is none. At
the limit, the running test is cut short: it does not fail, and the example database keeps its findings. With xdist,
each worker keeps the time and reports to the controller.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.outcomes import Skipped
from chance import seeded

OVER = "the time of the soak is over"


class Soak:
    """A soak; ``left``: tests that were not begun; ``cut``: tests that were cut short."""

    def __init__(self, config: pytest.Config) -> None:
        minutes = float(os.environ.get("DDFLOW_MINUTES") or 1e9)
        self.end = time.time() + 60 * minutes
        if hasattr(config, "workerinput"):
            self.end = config.workerinput["soak_end"]
        self.left: list[str] = []
        self.cut: list[str] = []
        self.ran = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give all workers the controller's end time."""
        node.workerinput["soak_end"] = self.end

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle the tests by the run's seed; each worker gets the same order."""
        seeded("order").shuffle(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Begin no test after the limit."""
        if time.time() < self.end:
            return None
        self.left.append(item.nodeid)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Cut the test short at the limit."""

        def over(*_: Any) -> None:
            self.cut.append(item.nodeid)
            raise Skipped(OVER)

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, min(max(self.end - time.time(), 0.001), 1e6))
        try:
            self.ran += 1
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Report a worker's results; a soak without time for any test is no error."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["soak"] = (self.ran, self.cut, self.left)
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's results."""
        ran, cut, left = getattr(node, "workeroutput", {}).get("soak", (0, [], []))
        self.ran, self.cut, self.left = self.ran + ran, self.cut + cut, self.left + left

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print finished and missing tests."""
        whole = self.ran - len(self.cut)
        terminalreporter.section("soak")
        terminalreporter.line(f"{whole} tests ran, {len(self.cut)} were cut short, {len(self.left)} were not begun")
        for title, names in (("cut short", self.cut), ("not begun", self.left)):
            for name, cases in sorted(Counter(each.partition("[")[0] for each in names).items()):
                terminalreporter.line(f"  {title}: {name}" + (f" ({cases} cases)" if cases > 1 else ""))
