"""A Postgres of the tests' own: started where its programs are, on a socket in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


def programs() -> Path | None:
    """The folder of Postgres' programs, None where there is none on this machine."""
    found = [*sorted(map(str, Path("/usr").glob("lib/postgresql/*/bin/pg_ctl")), reverse=True), shutil.which("pg_ctl")]
    return next((Path(each).parent for each in found if each), None)


def lacking() -> list[str]:
    """The tests that cannot run here."""
    of = programs()
    if of is None:
        return [f"connectors/test_postgres{each}.py" for each in ("", "_source", "_kill", "_faults")]
    there = any((of.parent / "lib").rglob("wal2json.so"))
    return [] if there else [f"connectors/test_postgres_{each}.py" for each in ("source", "kill", "faults")]


class Server:
    """A cluster that is started and stopped at will."""

    def __init__(self) -> None:
        where = programs()
        assert where is not None
        self.bin, self.place = where, Path(tempfile.mkdtemp(prefix="pg"))
        # It does not run as root.
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(self.place, "postgres")
        self.place.chmod(0o755)
        self._call("initdb", "-D", str(self.place / "data"), "-A", "trust", "-U", "postgres", "--no-sync")
        self.start()

    def _call(self, program: str, *told: str) -> None:
        done = subprocess.run(
            [*self.user, str(self.bin / program), *told], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Listen on the socket only."""
        options = f"-k {self.place} -c listen_addresses='' -c wal_level=logical -c fsync=off"
        data = str(self.place / "data")
        self._call("pg_ctl", "-D", data, "-o", options, "-l", str(self.place / "log"), "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """At once, as if it had died, by default."""
        self._call("pg_ctl", "-D", str(self.place / "data"), "-m", mode, "-w", "stop")

    @property
    def url(self) -> str:
        """Its address."""
        return f"postgresql://postgres@/postgres?host={self.place}"

    def close(self) -> None:
        """Stop it, and leave nothing."""
        self.stop()
        for _ in range(50):
            shutil.rmtree(self.place, ignore_errors=True)
            if not self.place.exists():
                return
            time.sleep(0.1)
