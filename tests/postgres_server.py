"""A Postgres of the tests' own: that of the demo, on a socket in a temporary folder, which does not wait for a disk."""

from __future__ import annotations

from local_postgres import LocalPostgres, missing, programs

DEMOS = ["examples/test_demo_cdc.py"]


def lacking() -> list[str]:
    """The tests that cannot run here."""
    if programs() is None:
        return [f"connectors/test_postgres{each}.py" for each in ("", "_source", "_kill", "_faults")] + DEMOS
    without = [f"connectors/test_postgres_{each}.py" for each in ("source", "kill", "faults")] + DEMOS
    return without if missing() else []


class Server(LocalPostgres):
    """A cluster that is started and stopped at will."""

    def __init__(self, port: int | None = None) -> None:
        super().__init__(port, "-c fsync=off")
