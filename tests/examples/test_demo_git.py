"""Test the demo's git feed: real repositories are read, folded by a dict, and compared with git's own output.

Every kind of change in git's log occurs in some repository. Renames, merges, shallow boundaries, odd names and the
user's configuration change git's output, but not the events.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path

import demo
import git_command
import git_log as git
import psutil
import pytest
from demo_repos import Repo, lively
from messages import raises
from typer.testing import CliRunner

from ddflow.errors import MissingExtra, UnreadableInput

Value = tuple[str, str]


def lines_of(path: Path, rows: int = git.SLICE) -> list[dict[str, object]]:
    """All raw lines of a repository, as rows."""
    return [row for piece in git.history(git.find(path), rows) for row in piece.raw.to_pylist()]


def fold(path: Path) -> dict[str, Value]:
    """The history folded by a dictionary; every old side is compared with what the dictionary held."""
    held: dict[str, Value] = {}
    for line in lines_of(path):
        old = (line["old_mode"], line["old_blob"]) if line["old_mode"] else None
        assert held.pop(line["path"], None) == old, line
        if line["mode"]:
            held[line["path"]] = (line["mode"], line["blob"])
    return held


def tree_of(path: Path) -> dict[str, Value]:
    return {row["path"]: (row["mode"], row["blob"]) for row in git.tree(git.find(path)).to_pylist()}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return lively(tmp_path_factory.mktemp("demo") / "lively")


def test_a_lively_history_folds_to_what_ls_tree_says(repo: Repo) -> None:
    held = fold(repo.path)
    assert held == tree_of(repo.path)
    assert held["side.md"] == ("100644", repo.hash("2\n"))
    assert held["b.md"][0] == "120000"
    assert set(held) == {"a.txt", "b.md", "side.md", "src/app.py", "tool/inner.sh", "vendor/lib/own.c"}


def test_commits_are_numbered_from_one_along_the_first_parents(repo: Repo) -> None:
    commits = [commit for piece in git.history(git.find(repo.path)) for commit in piece.commits]
    told = repo.git("rev-list", "--first-parent", "--reverse", "HEAD").decode().split()
    assert [(commit.ordinal, commit.hash) for commit in commits] == list(enumerate(told, start=1))
    assert len(commits) == repo.made == 11
    assert {commit.made for commit in commits} == {1700000000}


def test_every_kind_of_change_becomes_the_lines_it_should(repo: Repo) -> None:
    lines = lines_of(repo.path)
    by_commit = {n: {x["path"]: (x["old_mode"], x["mode"]) for x in lines if x["commit"] == n} for n in range(1, 12)}
    assert by_commit[2] == {"a.txt": ("100644", "100644"), "src/main.py": ("100644", "100755")}
    assert by_commit[3] == {}
    assert by_commit[4] == {"src/main.py": ("100755", None), "src/app.py": (None, "100755")}
    assert by_commit[5] == {"a.txt": ("100644", None)}
    assert by_commit[6] == {"a.txt": (None, "100644")}
    assert by_commit[8] == {"side.md": (None, "100644")}
    assert by_commit[9] == {"b.md": ("100644", "120000"), "tool": ("100755", None), "tool/inner.sh": (None, "100755")}
    assert by_commit[10] == {"vendor/lib": (None, "160000")}
    assert by_commit[11] == {"vendor/lib": ("160000", None), "vendor/lib/own.c": (None, "100644")}


def test_the_pieces_end_with_a_commit_whatever_their_size(repo: Repo) -> None:
    whole = lines_of(repo.path)
    for rows in (1, 2, 3, 1000):
        pieces = list(git.history(git.find(repo.path), rows))
        assert [row for piece in pieces for row in piece.raw.to_pylist()] == whole
        spans = [{commit.ordinal for commit in piece.commits} for piece in pieces]
        assert all(set(p.raw["commit"].to_pylist()) <= s for p, s in zip(pieces, spans, strict=True))
        assert sum(map(len, spans)) == repo.made == len(set().union(*spans))


def test_a_shallow_clone_works_from_its_boundary(repo: Repo, tmp_path: Path) -> None:
    for depth in (1, 3, 4):
        clone = tmp_path / f"depth{depth}"
        repo.git("clone", "--quiet", f"--depth={depth}", repo.path.as_uri(), str(clone))
        assert git.find(clone).shallow
        assert fold(clone) == tree_of(repo.path)
        first = [line for line in lines_of(clone) if line["commit"] == 1]
        boundary = repo.git("ls-tree", "-r", "--name-only", f"HEAD~{depth - 1}").decode().split()
        assert [line["path"] for line in first] == boundary
        assert all(line["old_mode"] is None for line in first)
    assert not git.find(repo.path).shallow


def test_paths_may_be_any_bytes(tmp_path: Path) -> None:
    repo = Repo.new(tmp_path / "odd")
    names = [b"caf\xc3\xa9.txt", b"\xff\xfe.bin", b"back\\slash", b"\\xff\\xfe.bin", b"tab\there", b"line\nbreak.py"]
    names += [
        b":100644 000000 a b M",
        b'"quoted"',
        b" lead and trail ",
        b"-dash",
        b"e\xcc\x81.txt",
        b"[red]x[/]",
        b"\x1b[1m",
    ]
    names += [b"0123456789abcdef 7", b"\n:000000"]
    for number, name in enumerate(names):
        repo.write(name, f"{number}\n")
        repo.commit()
    repo.write(names[1], "again\n")
    repo.commit()
    held = fold(repo.path)
    assert held == tree_of(repo.path)
    assert {git.path_bytes(path) for path in held} == set(names)
    assert len(held) == len(names)
    assert held["\\xff\\xfe.bin"] == ("100644", repo.hash("again\n"))
    assert held["\\\\xff\\\\xfe.bin"] == ("100644", repo.hash("3\n"))


def test_an_extension_is_that_of_the_last_part_of_the_path() -> None:
    paths = {
        "a/b.py": ".py",
        "a.b/c": "(none)",
        "x.tar.gz": ".gz",
        ".bashrc": "(none)",
        "..x": "(none)",
        "a.": "(none)",
    }
    assert {path: git.extension(path) for path in paths} == paths


def test_the_users_own_configuration_changes_nothing(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = lines_of(repo.path)
    (tmp_path / "order").write_text("*.py\nb*\n")
    (tmp_path / "gitconfig").write_text(
        "[log]\nshowRoot=false\nshowSignature=true\ndiffMerges=off\nfollow=true\ndecorate=full\n"
        "[diff]\nrenames=copies\nrelative=true\nignoreSubmodules=all\nnoprefix=true\nexternal=false\nsubmodule=log\n"
        f"orderFile={tmp_path / 'order'}\n[core]\nabbrev=7\nquotePath=true\npager=false\n[color]\nui=always\n"
        "[format]\npretty=fuller\nnotes=true\n[pager]\nlog=false\n[alias]\nlog=log --stat\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_PAGER", "false")
    assert lines_of(repo.path) == calm
    assert lines_of(repo.path / "src") == calm
    assert tree_of(repo.path / "src") == fold(repo.path)


def test_a_bare_repository_and_one_of_sha256_are_read_too(repo: Repo, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--bare", str(repo.path), str(tmp_path / "bare"))
    assert fold(tmp_path / "bare") == tree_of(repo.path)
    wide = Repo.new(tmp_path / "wide", "--object-format=sha256")
    wide.write("a", "1\n")
    wide.commit()
    wide.write("a", "2\n")
    wide.commit()
    assert fold(wide.path) == tree_of(wide.path) == {"a": ("100644", wide.hash("2\n"))}
    assert len(wide.hash("2\n")) == 64


def test_only_the_head_that_was_opened_is_read(repo: Repo, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "moving"))
    opened = git.find(tmp_path / "moving")
    moving = Repo(tmp_path / "moving")
    moving.write("late.txt", "late\n")
    moving.commit()
    assert "late.txt" not in git.tree(opened)["path"].to_pylist()
    assert all("late.txt" not in piece.raw["path"].to_pylist() for piece in git.history(opened))


def test_a_folder_that_is_no_repository_is_refused_by_what_git_says(tmp_path: Path) -> None:
    with raises(UnreadableInput) as caught:
        git.find(tmp_path)
    assert str(tmp_path) in caught.value.asked
    assert "--repo" in caught.value.fix
    with raises(UnreadableInput):
        git.find(tmp_path / "none")


TRAPS = {
    "ssh": {"remote.origin.url": "ssh://nowhere/x", "core.sshCommand": "{trap}"},
    "a helper": {"remote.origin.url": "ext::{trap}", "protocol.ext.allow": "always", "protocol.allow": "always"},
    "a program at the other end": {"remote.origin.url": "{repo}", "remote.origin.uploadpack": "{trap}"},
    "a proxy": {"remote.origin.url": "git://nowhere/x", "core.gitProxy": "{trap}"},
}
"""What a repository may say is the way to what it lacks; all of it is run."""


@pytest.mark.parametrize("way", TRAPS)
@pytest.mark.parametrize("lacks", ["HEAD^{commit}", "HEAD:d"])
@pytest.mark.parametrize("old", [False, True], ids=["git 2.45", "a git that cannot be told not to fetch"])
def test_a_hostile_repository_has_git_run_nothing(
    way: str, lacks: str, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial clone lacks a commit or a folder; git asks the remote for it, by a program that its settings name."""
    repo, sprung = Repo.new(tmp_path / "hostile"), tmp_path / "sprung"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\nexit 1\n")
    trap.chmod(0o755)
    for number in range(2):
        repo.write("d/file", str(number))
        repo.commit()
    lost = repo.git("rev-parse", lacks).decode().strip()
    (repo.path / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    said = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "tree:0",
        "core.pager": "{trap}",
        "core.fsmonitor": "{trap}",
        "core.hooksPath": "{hooks}",
        **TRAPS[way],
    }
    for name, value in said.items():
        repo.git("config", name, value.format(trap=trap, repo=repo.path, hooks=trap.parent))
    subprocess.run(["git", "-C", repo.path, "log", "--raw"], capture_output=True, check=False)
    assert sprung.exists(), "nothing is proved: git itself does not run it"
    sprung.unlink()
    if old:
        known = {name: value for name, value in git_command.SEALED.items() if name != "GIT_NO_LAZY_FETCH"}
        monkeypatch.setattr(git_command, "SEALED", known)
    with pytest.raises(UnreadableInput):
        list(git.history(git.find(repo.path)))
    with pytest.raises(UnreadableInput):
        tree_of(repo.path)
    assert not sprung.exists()


def test_every_call_of_git_is_sealed(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git is run with, as a git in its place sees it; no call of it goes another way."""
    real, told = shutil.which("git"), tmp_path / "told"
    (tmp_path / "git").write_text(f'#!/bin/sh\n(env; echo "ARGS $*") >> {told}\nexec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ssh:ext")
    monkeypatch.setenv("GIT_SSH_COMMAND", "touch /nowhere")
    lines_of(repo.path)
    tree_of(repo.path)
    lines = told.read_text().splitlines()
    calls = [line for line in lines if line.startswith("ARGS ")]
    assert len(calls) == 8
    for part in ("--no-pager", "-c core.hooksPath=/dev/null", "-c core.fsmonitor=false"):
        assert all(part in call for call in calls)
    for pair in ("GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0"):
        assert lines.count(pair) == len(calls)
    assert not any(line.startswith("GIT_SSH_COMMAND") for line in lines)


@pytest.mark.parametrize(
    ("name", "found", "remedy"),
    [
        ("", "the name is empty", "omit it for the one around the working directory"),
        ("{file}", "it is not a directory", "pass a git checkout with --repo"),
        ("{file}/in/it", "there is no such directory", "pass a git checkout with --repo"),
        ("x" * 5000, "there is no such directory", "pass a git checkout with --repo"),
        ("https://me:hunter2@example.com/x.git", "only local checkouts can be read", "git clone it"),
        ("ssh://hunter2@example.com/x", "only local checkouts can be read", "git clone it"),
        ("git@example.com:me/x.git", "only local checkouts can be read", "git clone it"),
        ("file:///tmp", "only local checkouts can be read", "git clone it"),
    ],
)
def test_what_is_no_folder_is_refused_with_what_to_write(name: str, found: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    asked = name.format(file=tmp_path / "file")
    with pytest.raises(UnreadableInput) as caught:
        git.find(asked)
    assert found in caught.value.found and remedy in caught.value.fix
    assert "hunter2" not in str(caught.value) and len(str(caught.value)) < 600
    done = CliRunner().invoke(demo.app, ["--no-spark", "--repo", asked, "--out", str(tmp_path / "out")])
    assert (done.exit_code, done.output) == (1, f"ddflow: {caught.value}\n")
    assert not (tmp_path / "out").exists()


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    empty = Repo.new(tmp_path / "empty")
    with raises(UnreadableInput):
        git.find(empty.path)


def test_a_machine_without_git_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(MissingExtra):
        git.find(tmp_path)


def test_a_damaged_repository_is_an_error_that_says_what_git_says(tmp_path: Path) -> None:
    repo = Repo.new(tmp_path / "damaged")
    repo.write("deep/a", "1\n")
    repo.commit()
    repo.write("deep/a", "2\n")
    repo.commit()
    tree = repo.git("rev-parse", "HEAD~1:deep").decode().strip()
    (repo.path / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(UnreadableInput, match=tree):
        list(git.history(git.find(repo.path)))


@pytest.mark.parametrize(
    "words",
    [
        [b"hello"],
        [b":000000 100644 00 1f A", b"a"],
        [b"c0ffee 1", b":000000 100644 00 1f A"],
        [b"c0ffee 1", b":000000 100644 00 1f R100", b"a", b"b"],
        [b"c0ffee 1", b"::100644 100644 100644 1f 1e 1d MM", b"a"],
    ],
)
def test_a_log_that_makes_no_sense_is_refused(words: list[bytes]) -> None:
    with raises(UnreadableInput):
        list(git.parse_log(words))


def test_words_are_cut_right_wherever_the_stream_is() -> None:
    text = b"\0".join([b"one", b"", b"three" * 7, b"\n:four"]) + b"\0"
    for size in range(1, 50):
        assert list(git.tokens(io.BytesIO(text), size)) == text.split(b"\0")[:-1]


def test_leaving_a_history_early_ends_git(repo: Repo) -> None:
    pieces = git.history(git.find(repo.path), rows=1)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert "git" not in [child.name() for child in psutil.Process().children()]
