"""The demo's dpkg feed: logs that dpkg itself wrote, read, folded by a dictionary, and judged by what dpkg-query says.

Invariant: the log below was written by dpkg, not by hand. What makes it hard (ties within a second, a package that
changes its architecture, a purge) is just what one would not think of writing down.
"""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from ddflow.demo import dpkg, job
from ddflow.demo.dpkg_feed import ACTIONS, DpkgFeed
from ddflow.errors import MissingExtra, UnreadableInput

LOG = """\
2026-11-21 07:28:01 startup archives install
2026-11-21 07:28:01 install foo:all <none> 1
2026-11-21 07:28:01 status half-installed foo:all 1
2026-11-21 07:28:01 status unpacked foo:all 1
2026-11-21 07:28:01 install bar:amd64 <none> 1
2026-11-21 07:28:01 status half-installed bar:amd64 1
2026-11-21 07:28:01 status unpacked bar:amd64 1
2026-11-21 07:28:01 install baz:all <none> 1
2026-11-21 07:28:01 status half-installed baz:all 1
2026-11-21 07:28:01 status unpacked baz:all 1
2026-11-21 07:28:01 install qux:all <none> 1
2026-11-21 07:28:01 status half-installed qux:all 1
2026-11-21 07:28:01 status unpacked qux:all 1
2026-11-21 07:28:01 configure foo:all 1 1
2026-11-21 07:28:01 status half-configured foo:all 1
2026-11-21 07:28:01 status installed foo:all 1
2026-11-21 07:28:01 configure bar:amd64 1 1
2026-11-21 07:28:01 status half-configured bar:amd64 1
2026-11-21 07:28:01 status installed bar:amd64 1
2026-11-21 07:28:01 configure baz:all 1 1
2026-11-21 07:28:01 status half-configured baz:all 1
2026-11-21 07:28:01 status installed baz:all 1
2026-11-21 07:28:01 configure qux:all 1 1
2026-11-21 07:28:01 status half-configured qux:all 1
2026-11-21 07:28:01 status installed qux:all 1
2026-11-21 07:28:02 startup archives install
2026-11-21 07:28:02 upgrade foo:all 1 2
2026-11-21 07:28:02 status half-configured foo:all 1
2026-11-21 07:28:02 status unpacked foo:all 1
2026-11-21 07:28:02 status half-installed foo:all 1
2026-11-21 07:28:02 status unpacked foo:amd64 2
2026-11-21 07:28:02 configure foo:amd64 2 2
2026-11-21 07:28:02 status half-configured foo:amd64 2
2026-11-21 07:28:02 status installed foo:amd64 2
2026-11-21 07:28:03 startup archives install
2026-11-21 07:28:03 upgrade foo:amd64 2 3
2026-11-21 07:28:03 status half-configured foo:amd64 2
2026-11-21 07:28:03 status unpacked foo:amd64 2
2026-11-21 07:28:03 status half-installed foo:amd64 2
2026-11-21 07:28:03 status unpacked foo:all 3
2026-11-21 07:28:03 configure foo:all 3 3
2026-11-21 07:28:03 status half-configured foo:all 3
2026-11-21 07:28:03 status installed foo:all 3
2026-11-21 07:28:03 startup packages remove
2026-11-21 07:28:03 status installed bar:amd64 1
2026-11-21 07:28:03 remove bar:amd64 1 <none>
2026-11-21 07:28:03 status half-configured bar:amd64 1
2026-11-21 07:28:03 status half-installed bar:amd64 1
2026-11-21 07:28:03 status config-files bar:amd64 1
2026-11-21 07:28:04 startup packages purge
2026-11-21 07:28:04 status installed baz:all 1
2026-11-21 07:28:04 remove baz:all 1 <none>
2026-11-21 07:28:04 status half-configured baz:all 1
2026-11-21 07:28:04 status half-installed baz:all 1
2026-11-21 07:28:04 status config-files baz:all 1
2026-11-21 07:28:04 purge baz:all 1 <none>
2026-11-21 07:28:04 status not-installed baz:all <none>
2026-11-21 07:28:04 startup archives install
2026-11-21 07:28:04 upgrade qux:all 1 1
2026-11-21 07:28:04 status half-configured qux:all 1
2026-11-21 07:28:04 status unpacked qux:all 1
2026-11-21 07:28:04 status half-installed qux:all 1
2026-11-21 07:28:04 status unpacked qux:all 1
2026-11-21 07:28:04 configure qux:all 1 1
2026-11-21 07:28:04 status half-configured qux:all 1
2026-11-21 07:28:04 status installed qux:all 1
"""
"""dpkg 1.21: four packages come; foo becomes amd64, then all again; bar is removed, baz purged, qux comes again."""

STATUS = "".join(
    f"Package: {name}\nStatus: {status}\nMaintainer: m <m@example.com>\nArchitecture: {arch}\nVersion: {version}\n"
    f"{'Config-Version: 1' + chr(10) if 'config' in status else ''}Description: x\n\n"
    for name, status, arch, version in [
        ("foo", "install ok installed", "all", "3"),
        ("bar", "deinstall ok config-files", "amd64", "1"),
        ("qux", "install ok installed", "all", "1"),
        ("early", "install ok installed", "all", "9"),
    ]
)
"""dpkg's status file after it, with a package that was there before the log began."""


def system(root: Path, log: str = LOG, status: str = STATUS) -> Path:
    """A folder laid out as a Debian system's root, with a log and dpkg's status file."""
    (root / "var/log").mkdir(parents=True)
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/log/dpkg.log").write_text(log)
    (root / "var/lib/dpkg/status").write_text(status)
    return root


def fold(events: list[dpkg.Event]) -> dict[str, tuple[str | None, str | None]]:
    held: dict[str, tuple[str | None, str | None]] = {}
    for event in events:
        held.pop(event.package, None)
        if not event.gone:
            held[event.package] = (event.status, event.version)
    return held


def test_the_log_folds_to_what_dpkg_says_is_installed() -> None:
    events = list(dpkg.Reader().events(LOG.splitlines()))
    assert fold(events) == {
        "foo:all": ("installed", "3"),
        "bar:amd64": ("config-files", "1"),
        "qux:all": ("installed", "1"),
    }
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_package_that_changes_its_architecture_leaves_no_ghost() -> None:
    reader = dpkg.Reader()
    events = [event for event in reader.events(LOG.splitlines()) if event.package.startswith("foo")]
    gone = [(event.package, events[n + 1].package) for n, event in enumerate(events) if event.gone]
    assert gone == [("foo:all", "foo:amd64"), ("foo:amd64", "foo:all")]


def test_siblings_of_several_architectures_stay_apart() -> None:
    log = []
    for second, arch, sibling in ((1, "amd64", "i386"), (2, "i386", "amd64")):
        held = second  # the sibling has been upgraded already, or not yet
        steps = [f"upgrade libc6:{arch} 1 2", f"status half-configured libc6:{arch} 1"]
        steps += [f"status half-configured libc6:{sibling} {held}", f"status half-installed libc6:{arch} 1"]
        steps += [f"status unpacked libc6:{arch} 2", f"status installed libc6:{arch} 2"]
        steps += [f"status installed libc6:{sibling} {held}"]
        log += [f"2026-01-01 00:00:0{second} {step}" for step in steps]
    events = list(dpkg.Reader().events(log))
    assert fold(events) == {"libc6:amd64": ("installed", "2"), "libc6:i386": ("installed", "2")}
    assert not any(event.gone for event in events)


def test_actions_name_the_version_before_them_unless_the_package_changed_in_that_second() -> None:
    reader = dpkg.Reader()
    list(reader.events(LOG.splitlines()))
    named = [(replaced.package, replaced.version) for replaced in reader.replaced]
    assert named == [("foo:all", "1"), ("foo:amd64", "2"), ("qux:all", "1")]


def test_a_clock_that_is_set_back_does_not_turn_the_order_round() -> None:
    log = ["2026-10-25 02:59:59 status unpacked a:all 1", "2026-10-25 02:00:01 status installed a:all 1"]
    reader = dpkg.Reader()
    events = list(reader.events(log))
    assert [event.at for event in events] == [events[0].at] * 2
    assert fold(events) == {"a:all": ("installed", "1")}
    assert reader.set_back == 1


def test_lines_that_are_not_dpkgs_are_counted_and_passed_over() -> None:
    reader = dpkg.Reader()
    log = ["", "rubbish", "2026-01-01 00:00:00 startup archives unpack", "2026-01-01 00:00:00 conffile /etc/x keep"]
    assert list(reader.events([*log, "2026-01-01 00:00:00 status installed a:all 1"]))
    assert (reader.lines, reader.other) == (5, 2)


def test_rotated_logs_are_read_oldest_first_packed_or_not(tmp_path: Path) -> None:
    root = system(tmp_path / "root", "c1\nc2\n")
    log = root / "var/log"
    (log / "dpkg.log.1").write_text("b\n")
    (log / "dpkg.log.10.gz").write_bytes(gzip.compress(b"oldest\n"))
    (log / "dpkg.log.2.gz").write_bytes(gzip.compress(b"a1\na2\n"))
    (log / "dpkg.log.bak").write_text("not this\n")
    assert [path.name for path in dpkg.logs(root)] == ["dpkg.log.10.gz", "dpkg.log.2.gz", "dpkg.log.1", "dpkg.log"]
    assert [line.strip() for line in dpkg.lines(dpkg.logs(root))] == ["oldest", "a1", "a2", "b", "c1", "c2"]


def test_a_damaged_log_is_refused_by_name(tmp_path: Path) -> None:
    root = system(tmp_path / "root")
    packed = gzip.compress(LOG.encode())
    for bad in (packed[:-20], b"no gzip at all", packed[:30] + b"\0\0\0\0" + packed[34:]):
        (root / "var/log/dpkg.log.1.gz").write_bytes(bad)
        with pytest.raises(UnreadableInput, match=r"dpkg\.log\.1\.gz"):
            list(dpkg.lines(dpkg.logs(root)))


def test_a_machine_without_a_dpkg_log_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"there is no dpkg\.log"):
        dpkg.logs(tmp_path)


def test_a_machine_without_dpkg_query_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match="no dpkg-query"):
        dpkg.installed(tmp_path)


def demo(root: Path, out: Path) -> job.Demo:
    """The log of ``root`` through its plan, in process."""
    made = job.Demo(DpkgFeed(root), out, Console(file=io.StringIO(), width=150))
    made.locally()
    return made


# Where there is no dpkg-query, there is nothing to judge by: the demo must say so.  Elsewhere it must pass.
HAS_DPKG = shutil.which("dpkg-query") is not None


def test_a_log_that_dpkg_wrote_passes_every_check(tmp_path: Path) -> None:
    root = system(tmp_path / "root")
    if not HAS_DPKG:
        with pytest.raises(MissingExtra, match="no dpkg-query"):
            demo(root, tmp_path / "out")
        return
    run = demo(root, tmp_path / "out")
    assert run.checks.good
    assert {what: tally.asked for what, tally in run.checks.items()} == {
        ACTIONS: 3,
        "after the last event: nothing more": 1,
        "final packages: dpkg-query": 3,
        "final counts by status: dpkg-query": 2,
        "final installed: dpkg-query": 2,
        "verdicts: one for each event": 1,
    }
    assert run.now == {"installed": 2, "config-files": 1}
    assert run.feed.notes()[0].startswith("1 of the 4 packages that dpkg-query lists are not in the log")


def test_the_diffs_of_a_package_are_its_states_at_the_end_of_each_second(tmp_path: Path) -> None:
    root = system(tmp_path / "root")
    feed = DpkgFeed(root)
    with feed.plan().open() as engine:
        for part in feed.slices():
            engine.push({"packages": part.events})
        updates = engine.advance_to(part.closes)["packages"].to_pylist()
    start = updates[0]["_time"]
    foo = [u for u in updates if u["package"] == "foo:all"]
    told = [(u["version"], u["status"], (u["_time"] - start).seconds, u["_diff"]) for u in foo]
    assert told == [("1", "installed", 0, 1), ("1", "installed", 1, -1), ("3", "installed", 2, 1)]
    assert [u["_diff"] for u in updates if u["package"] == "qux:all"] == [1]  # installed again: a no-op


def test_a_final_state_that_dpkg_denies_fails(tmp_path: Path) -> None:
    root = system(tmp_path / "root", status=STATUS.replace("Version: 3", "Version: 4"))
    if not HAS_DPKG:
        with pytest.raises(MissingExtra, match="no dpkg-query"):
            demo(root, tmp_path / "out")
        return
    checks = demo(root, tmp_path / "out").checks
    assert [what for what, tally in checks.items() if tally.held < tally.asked] == [
        "final packages: dpkg-query",
        "final installed: dpkg-query",
    ]
    assert checks["final packages: dpkg-query"].asked - checks["final packages: dpkg-query"].held == 2


def test_a_retraction_that_dpkgs_own_lines_deny_fails(tmp_path: Path) -> None:
    root = system(tmp_path / "root", LOG.replace("upgrade foo:amd64 2 3", "upgrade foo:amd64 9 3"))
    feed = DpkgFeed(root)
    with feed.plan().open() as engine:
        checks = job.Checks()
        for part in feed.slices():
            engine.push({"packages": part.events})
            feed.judge(part, engine.advance_to(part.closes), checks)
    assert (checks[ACTIONS].asked, checks[ACTIONS].held) == (2, 1)
    assert checks[ACTIONS].failures == ["expected foo:amd64 to retract version ['9'], found ['2']"]


def test_slices_end_with_a_second_and_hold_every_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddflow.demo.dpkg_feed.SLICE", 5)
    parts = list(DpkgFeed(system(tmp_path / "root")).slices())
    stamps = [part.events["at"].cast(pa.int64()).to_pylist() for part in parts]
    assert len(parts) == 4
    assert all(
        max(stamp) < part.closes <= min(later) for stamp, part, later in zip(stamps, parts, stamps[1:], strict=False)
    )
    assert sum(map(len, stamps)) == len(list(dpkg.Reader().events(LOG.splitlines())))


def test_a_log_in_which_nothing_happened_is_refused(tmp_path: Path) -> None:
    root = system(tmp_path / "root", "2026-01-01 00:00:00 startup archives unpack\n")
    with pytest.raises(UnreadableInput, match="no package changes in its 1 lines"):
        demo(root, tmp_path / "out")
