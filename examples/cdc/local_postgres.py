"""Start a temporary Postgres with logical decoding, as a new cluster in a temporary folder.

The cluster uses Debian's programs, or the programs on PATH. Postgres refuses to run as root, so if you are root, the
user ``postgres`` runs it.

Guarantees: Postgres listens on a socket in a folder that only the user of Postgres can enter. With ``tcp`` it also
listens on a port of 127.0.0.1 and asks for the password. `close` removes all files, even after an immediate stop.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

INSTALL: Final = "apt install postgresql postgresql-15-wal2json, with the number of your version"


def programs() -> Path | None:
    """Return the folder of the programs of Postgres, or None if this machine does not have them."""
    found = [*sorted(map(str, Path("/usr").glob("lib/postgresql/*/bin/pg_ctl")), reverse=True), shutil.which("pg_ctl")]
    return next((Path(each).resolve().parent for each in found if each), None)


def missing(plugin: str = "wal2json") -> str | None:
    """Describe what this machine lacks to run Postgres with a plugin. Return None if nothing is missing."""
    where = programs()
    if where is None:
        return "there is no Postgres"
    there = any((where.parent / "lib").rglob(f"{plugin}.so"))
    return None if there else f"the Postgres in {where.parent} has no {plugin}"


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class LocalPostgres:
    """A temporary cluster of Postgres. With ``tcp`` it also listens on a port."""

    def __init__(self, *options: str, tcp: bool = False) -> None:
        where = programs()
        assert where is not None, INSTALL
        self.bin, self.place = where, Path(tempfile.mkdtemp(prefix="pg"))
        self.port: int | None = None
        self.password, self.options = secrets.token_hex(16), options
        secret = self.place / "password"
        secret.write_text(self.password)
        self._as: list[str] = []
        if os.geteuid() == 0:
            self._as = ["runuser", "-u", "postgres", "--"]
            for each in (self.place, secret):
                shutil.chown(each, "postgres")
        how = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}", "--no-sync", "-E", "UTF8"]
        self._call("initdb", "-D", str(self.place / "data"), "-U", "postgres", *how)
        while True:
            self.port = free_port() if tcp else None
            try:
                self.start()
                return
            except AssertionError:  # another program may have taken the port in the meantime
                if not tcp or "Address already in use" not in (self.place / "log").read_text():
                    raise
                (self.place / "log").unlink()

    def _call(self, program: str, *given: str) -> None:
        done = subprocess.run(
            [*self._as, str(self.bin / program), *given], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the cluster, and wait until it listens."""
        where = "-c listen_addresses=''" if self.port is None else f"-c listen_addresses=127.0.0.1 -p {self.port}"
        options = " ".join([f"-k {self.place} -c wal_level=logical", where, *self.options])
        data = str(self.place / "data")
        self._call("pg_ctl", "-D", data, "-o", options, "-l", str(self.place / "log"), "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the cluster, by default immediately, as if it had crashed."""
        self._call("pg_ctl", "-D", str(self.place / "data"), "-m", mode, "-w", "stop")

    @property
    def url(self) -> str:
        """The address of the cluster. With a port, clients need `password` in PGPASSWORD."""
        if self.port is not None:
            return f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        return f"postgresql://postgres@/postgres?host={self.place}"

    def close(self) -> None:
        """Stop the cluster, and remove its files."""
        self.stop()
        for _ in range(50):
            shutil.rmtree(self.place, ignore_errors=True)
            if not self.place.exists():
                return
            time.sleep(0.1)

    def __enter__(self) -> LocalPostgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
