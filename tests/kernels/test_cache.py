"""Test the kernel cache in real processes: it saves compilations, notices every edit, and never stops a program.

Each test installs the real decorator and cache beside a few tiny kernels (one calls another in another file), so that
it can edit their sources. The processes are forked from one with a warm compiler, so each costs a fraction of a second.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import PIPE, Program

from ddflow.kernels import cache

PACKAGE = Path(cache.__file__).parent
LEAF = """
from ddflow.kernels.compile import kernel

@kernel
def step(n):
    return n + 1

@kernel
def pick(array, i):
    return array[i]
"""
TINY = """
from ddflow.kernels.compile import kernel
from ddflow.kernels.leaf import step

@kernel
def twice(n):
    return step(step(n))
"""
REPORT = """
import json
from ddflow.kernels import compile, leaf, tiny
compile.PATIENCE.seconds = 0
answer = tiny.twice(40)
stats = getattr(tiny.twice, "stats", None)
print(json.dumps({
    "answer": answer,
    "hits": sum(stats.cache_hits.values()) if stats else 0,
    "misses": sum(stats.cache_misses.values()) if stats else 0,
    "directory": str(compile.cache_directory()),
}))
"""
COMPILER = "import numba\nnumba.njit(nogil=True, error_model='numpy')(lambda n: n + 1)(1)"
FORKED = """
import sys
from numba.core import config
sys.dont_write_bytecode = True
config.reload_config()  # of this environment
"""
FLIPS = {"the first byte": 0, "the middle": 5000, "the last byte": -1}


class Install:
    """A copy of the decorator and the cache with two tiny kernels, a home of its own, and a way to run Python on it.

    A folder that has one is taken as it is.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "install"
        self.kernels = self.root / "ddflow" / "kernels"
        self.home, self.temporary = folder / "home", folder / "temporary"
        if self.root.exists():
            return
        self.kernels.mkdir(parents=True)
        (self.root / "ddflow" / "__init__.py").write_text("")
        for name in ("__init__.py", "cache.py", "compile.py"):
            shutil.copy(PACKAGE / name, self.kernels / name)
        (self.kernels / "leaf.py").write_text(LEAF)
        (self.kernels / "tiny.py").write_text(TINY)
        self.home.mkdir()
        self.temporary.mkdir()

    def environment(self, **changes: str) -> dict[str, str]:
        dropped = ("NUMBA", "DDFLOW", "XDG", "PYTHON", "COV")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": str(self.root)}
        return clean | own | changes

    def start(self, program: str = REPORT, **changes: str) -> Program:
        environment, path = self.environment(**changes), [str(self.root)]
        return Program(FORKED + program, of=COMPILER, path=path, env=environment, stdout=PIPE, stderr=PIPE)

    def run(self, program: str = REPORT, **changes: str) -> dict[str, Any]:
        return finished(self.start(program, **changes))

    def files(self) -> list[Path]:
        return sorted(self.home.rglob("*.kernel"))


def finished(process: Program) -> dict[str, Any]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["answer"] == 42
    return {**result, "warnings": err}


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return Install(tmp_path)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an install that has run once, so that its kernels are compiled."""
    folder = tmp_path_factory.mktemp("ran")
    Install(folder).run()
    return folder


@pytest.fixture
def warm(ran: Path, tmp_path: Path) -> Install:
    """An install of one's own that has run once: a copy, since its digest is of contents, not of places or times."""
    shutil.copytree(ran, tmp_path / "warm")
    return Install(tmp_path / "warm")


def test_the_second_process_finds_what_the_first_compiled_and_the_install_is_never_written(install: Install) -> None:
    before = sorted(install.root.rglob("*"))
    first, second = install.run(), install.run()
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    place = "Library/Caches/ddflow" if sys.platform == "darwin" else ".cache/ddflow"
    directory = Path(second["directory"])
    assert directory.parent == install.home / place
    assert directory.stat().st_mode & 0o777 == 0o700
    assert sorted(install.root.rglob("*")) == before


def test_importing_kernels_compiles_nothing_and_makes_no_directory(install: Install) -> None:
    program = """
import json
from ddflow.kernels import compile, tiny
made = [kernel.signatures for kernel in compile.list_kernels()]
print(json.dumps({"answer": 42, "made": made}))
"""
    assert install.run(program)["made"] == [[], [], []]
    assert list(install.home.iterdir()) == []


@pytest.mark.drawn(1)
@pytest.mark.parametrize("place", FLIPS)
def test_a_flipped_bit_in_a_cached_file_costs_a_compilation_and_nothing_else(warm: Install, place: str) -> None:
    (damaged,) = [file for file in warm.files() if "twice" in file.name]
    content = bytearray(damaged.read_bytes())
    content[FLIPS[place]] ^= 0x10
    damaged.write_bytes(content)
    healed, after = warm.run(), warm.run()
    assert (healed["misses"], after["hits"]) == (1, 1)
    assert "fails its checksum" in healed["warnings"]
    assert after["warnings"] == ""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("length", [0, 30, 3000])
def test_a_truncated_or_emptied_cached_file_costs_a_compilation_and_nothing_else(warm: Install, length: int) -> None:
    for file in warm.files():
        os.truncate(file, length)
    healed, after = warm.run(), warm.run()
    assert (healed["misses"], after["hits"]) == (1, 1)


def test_an_intact_file_that_numba_cannot_use_heals_too(warm: Install) -> None:
    directory = warm.files()[0].parent
    for file in warm.files():
        cache.KernelFolder(directory).write_kernel(file.stem, b"not a compiled kernel")
    healed, after = warm.run(), warm.run()
    assert (healed["misses"], after["hits"]) == (1, 1)
    assert "ddflow compiles the kernel again" in healed["warnings"]


def test_a_file_of_another_digest_or_another_kernel_is_not_taken(warm: Install) -> None:
    """Copied whole, its checksum right: a stale file under a new digest, one kernel's code under another's name."""
    old = warm.files()[0].parent
    (warm.kernels / "leaf.py").write_text(LEAF.replace("n + 1", "n + 100"))
    program = REPORT.replace("tiny.twice(40)", "tiny.twice(40) - 198")
    new = Path(warm.run(program)["directory"])
    assert new != old
    for file in old.iterdir():
        shutil.copy(file, new / file.name)
    after = warm.run(program)
    assert (after["misses"], after["hits"]) == (1, 0)
    assert "belongs to another kernel" in after["warnings"]
    assert warm.run(program)["hits"] == 1


def test_one_kernel_is_not_read_under_the_name_of_another(tmp_path: Path) -> None:
    folder = cache.KernelFolder.choose([tmp_path], "f" * 32)
    assert folder.directory is not None
    folder.write_kernel("twice", b"code")
    shutil.copy(folder.directory / "twice.kernel", folder.directory / "thrice.kernel")
    assert folder.read_kernel("twice") == b"code"
    assert folder.read_kernel("thrice") is None


def test_an_edit_to_a_helper_in_another_file_is_noticed(warm: Install) -> None:
    (warm.kernels / "leaf.py").write_text(LEAF.replace("n + 1", "n + 100"))
    program = REPORT.replace("tiny.twice(40)", "tiny.twice(40) - 198")
    assert warm.run(program)["misses"] == 1


def test_sources_edited_after_their_import_are_neither_read_from_the_cache_nor_written_to_it(warm: Install) -> None:
    edit = f"from ddflow.kernels import leaf, tiny\nopen({str(warm.kernels / 'leaf.py')!r}, 'a').write('# edited')\n"
    before = warm.files()
    result = warm.run(edit + REPORT)
    assert (result["hits"], result["directory"]) == (0, "None")
    assert warm.files() == before


def test_a_home_that_cannot_be_written_sends_the_cache_to_the_temporary_directory(install: Install) -> None:
    first, second = install.run(HOME="/dev/null"), install.run(HOME="/dev/null")
    assert (first["misses"], second["hits"]) == (1, 1)
    assert Path(second["directory"]).parent == install.temporary / f"ddflow-{os.geteuid()}"


def test_the_cache_directory_can_be_chosen(install: Install, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen" / "deep"
    assert Path(install.run(DDFLOW_CACHE_DIR=str(chosen))["directory"]).parent == chosen
    assert list(install.home.iterdir()) == []


NO_FILE_MAY_GROW = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full or read-only disk; pipes still work
"""


def test_with_no_place_to_write_everything_still_works(install: Install) -> None:
    result = install.run(NO_FILE_MAY_GROW + REPORT)
    assert (result["directory"], result["misses"], result["warnings"]) == ("None", 1, "")


def test_a_disk_that_fills_later_is_no_error(tmp_path: Path) -> None:
    folder = cache.KernelFolder.choose([tmp_path], "b" * 32)
    assert folder.directory is not None
    folder.write_kernel("x" * 400, b"a name no file system takes")
    assert folder.read_kernel("x" * 400) is None
    assert list(folder.directory.iterdir()) == []


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    folder = cache.KernelFolder.choose([tmp_path], "c" * 32)
    assert folder.directory is not None
    folder.directory.rmdir()
    assert folder.read_kernel("twice") is None
    folder.write_kernel("twice", b"code")
    assert folder.read_kernel("twice") == b"code"


def test_two_processes_may_compile_the_same_kernel_at_once(install: Install) -> None:
    both = [install.start(), install.start()]
    assert all(finished(process)["warnings"] == "" for process in both)
    after = install.run()
    assert (after["hits"], after["misses"]) == (1, 0)
    assert [file.suffix for file in Path(after["directory"]).iterdir()] == [".kernel"] * 2


def test_only_the_newest_few_directories_of_other_digests_stay(tmp_path: Path) -> None:
    for age in range(7):
        old = tmp_path / f"kernels-{age:032x}"
        old.mkdir(mode=0o700)
        (old / ("mine.txt" if age == 5 else "a.kernel")).write_bytes(b"")
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "other").mkdir()
    folder = cache.KernelFolder.choose([tmp_path], "d" * 32)
    kept = {f"kernels-{age:032x}" for age in (*range(cache.KEPT), 5)}
    assert folder.directory is not None
    assert {entry.name for entry in tmp_path.iterdir()} == kept | {"other", folder.directory.name}


def test_a_directory_of_another_user_or_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert cache.find_privacy_fault(tmp_path.stat(), os.geteuid()) is None
    assert "belongs to user" in str(cache.find_privacy_fault(tmp_path.stat(), os.geteuid() + 1))
    tmp_path.chmod(0o770)
    assert "other users may open it" in str(cache.find_privacy_fault(tmp_path.stat(), os.geteuid()))


def test_what_others_may_replace_in_is_refused_unless_it_is_sticky() -> None:
    def state(mode: int, owner: int) -> os.stat_result:
        return os.stat_result((stat.S_IFDIR | mode, 0, 0, 0, owner, 0, 0, 0, 0, 0))

    for mode, told in ((0o777, True), (0o770, True), (0o757, True), (0o1777, False), (0o755, False), (0o700, False)):
        for owner in (7, 0):
            assert ("other users may replace" in str(cache.find_replacement_risk(state(mode, owner), 7))) == told
    assert cache.find_replacement_risk(state(0o1777, 8), 7) == "it belongs to user 8, not to 7"


def test_a_cache_whose_parent_others_may_write_to_goes_to_the_next_place_and_is_not_read(install: Install) -> None:
    """Who may rename our folder away may put another of ours there, of any digest."""
    chosen = install.home / "shared"
    chosen.mkdir()
    first = install.run(DDFLOW_CACHE_DIR=str(chosen))
    assert Path(first["directory"]).parent == chosen
    chosen.chmod(0o777)
    second = install.run(DDFLOW_CACHE_DIR=str(chosen))
    assert Path(second["directory"]).parent == install.temporary / f"ddflow-{os.geteuid()}"
    assert (second["hits"], second["misses"]) == (0, 1)
    folder = cache.KernelFolder(Path(first["directory"]))
    assert folder.read_kernel(install.files()[0].stem) is None
    chosen.chmod(0o1777)
    third = install.run(DDFLOW_CACHE_DIR=str(chosen))
    assert (third["directory"], third["hits"]) == (first["directory"], 1)


def test_a_directory_that_is_refused_sends_the_cache_to_the_next_place(tmp_path: Path) -> None:
    name, nowhere = "e" * 32, tmp_path / "elsewhere"
    nowhere.mkdir()
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    (first / f"kernels-{name}").mkdir(parents=True)
    (first / f"kernels-{name}").chmod(0o755)
    second.mkdir()
    (second / f"kernels-{name}").symlink_to(nowhere)
    directory = cache.KernelFolder.choose([first, second, third], name).directory
    assert directory == third / f"kernels-{name}"
    assert list(nowhere.iterdir()) == []


def test_bounds_checks_and_interpreted_kernels_have_caches_of_their_own(install: Install) -> None:
    plain = install.run()
    checked = install.run(NUMBA_BOUNDSCHECK="1")
    interpreted = install.run(NUMBA_DISABLE_JIT="1")
    assert len({plain["directory"], checked["directory"], interpreted["directory"]}) == 3
    assert checked["misses"] == 1
    program = """
import json, numpy
from ddflow.kernels.leaf import pick
try:
    pick(numpy.zeros(3), 7)
except IndexError:
    print(json.dumps({"answer": 42}))
"""
    install.run(program, NUMBA_BOUNDSCHECK="1")
    install.run(program, NUMBA_DISABLE_JIT="1")
