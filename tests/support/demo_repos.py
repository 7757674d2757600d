"""Make git repositories for the tests of the demo. Git itself makes them, with a fixed configuration.

The same calls always give the same commits, because author, dates and branch are fixed. The hash of a commit depends on
its date and author, which git otherwise takes from the environment.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "frank", "EMAIL": "frank@example.com", "DATE": "1700000000 +0000"}.items()
}


@dataclass
class Repo:
    """A git repository in a folder. ``made`` is the number of commits along the first parents."""

    path: Path
    made: int = field(default=0)

    @classmethod
    def new(cls, path: Path, *options: str) -> Repo:
        """Make an empty repository on branch ``main``."""
        path.mkdir(parents=True)
        repo = cls(path)
        repo.git("init", "--quiet", "--initial-branch=main", *options)
        return repo

    def git(self, *command: str | bytes, stdin: bytes = b"") -> bytes:
        """Run a git command and return its output; a failure fails the test."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        env = clean | WHO | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *command], cwd=self.path, env=env, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout

    def write(self, path: str | bytes, text: str, mode: int = 0o644) -> None:
        """Write a file in the work tree, and make the folders that it needs."""
        whole = os.path.join(os.fsencode(self.path), os.fsencode(path))
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "w") as out:
            out.write(text)
        os.chmod(whole, mode)

    def commit(self, what: str = "work") -> str:
        """Commit everything in the work tree, even if nothing has changed. Return the hash of the commit."""
        self.git("add", "--all")
        return self.commit_index(what)

    def commit_index(self, what: str = "work") -> str:
        """Commit the index; return the commit's hash."""
        self.git("commit", "--quiet", "--allow-empty", "--message", what)
        self.made += 1
        return self.head

    @property
    def head(self) -> str:
        """The hash of the head commit."""
        return self.git("rev-parse", "HEAD").decode().strip()

    def hash(self, text: str) -> str:
        """Return the name that git gives to a blob with this text."""
        return self.git("hash-object", "--stdin", stdin=text.encode()).decode().strip()


def lively(path: Path) -> Repo:
    """Make a history that has each kind of change in git's log once, in a known order."""
    repo = Repo.new(path)
    repo.write("a.txt", "one\n")
    repo.write("src/main.py", "print()\n")
    repo.write("tool", "#!/bin/sh\n", 0o755)
    repo.commit("1: a root commit")
    repo.write("a.txt", "two\n")
    repo.write("src/main.py", "print()\n", 0o755)
    repo.commit("2: an edit and a change of mode alone")
    repo.commit("3: nothing")
    repo.git("mv", "src/main.py", "src/app.py")
    repo.commit("4: a rename")
    repo.git("rm", "--quiet", "a.txt")
    repo.commit("5: a delete")
    repo.write("a.txt", "two\n")
    repo.commit("6: the very same file again")
    repo.git("checkout", "--quiet", "-b", "side")
    repo.write("side.md", "1\n")
    repo.commit("not on the first-parent line")
    repo.write("side.md", "2\n")
    repo.commit("nor this")
    repo.git("checkout", "--quiet", "main")
    repo.write("b.md", "b\n")
    repo.made -= 2
    repo.commit("7: meanwhile on main")
    repo.git("merge", "--quiet", "--no-ff", "--message", "8: a merge", "side")
    repo.made += 1
    repo.git("rm", "--quiet", "tool")
    repo.write("tool/inner.sh", "#!/bin/sh\n", 0o755)
    (repo.path / "b.md").unlink()
    (repo.path / "b.md").symlink_to("a.txt")
    repo.commit("9: a file becomes a folder, another a symbolic link")
    entry = "160000,0123456789abcdef0123456789abcdef01234567,vendor/lib"
    repo.git("update-index", "--add", "--cacheinfo", entry)
    repo.commit_index("10: a submodule")
    repo.git("rm", "--quiet", "--cached", "vendor/lib")
    repo.write("vendor/lib/own.c", "int x;\n")
    repo.commit("11: the submodule's files become our own")
    return repo
