"""Run a soak: run tests in random order for some minutes, then report finished and missing tests.

This pytest plugin is active with ``DDFLOW_SOAK=1``. ``DDFLOW_MINUTES=60`` sets a time limit; the default is no limit.
At the limit, the running test is stopped. A test that the time limit stops does not fail, and its examples stay in the
example database. With xdist, each worker checks the time by itself, and reports results to the controller.
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
    """The state of a soak.

    ``left`` has the tests that did not start, and ``cut`` the tests that were stopped at the limit.
    """

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
        """Give the end time of the controller to all workers."""
        node.workerinput["soak_end"] = self.end

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle the tests by the seed of the run. Each worker gets the same order."""
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
        """Stop the running test at the limit."""

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
        """Send the results of this worker to the controller.

        If a soak had no time for any test, this is not an error.
        """
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["soak"] = (self.ran, self.cut, self.left)
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the results of a worker to the total."""
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
