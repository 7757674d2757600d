"""Check the options of data sources, and limit the batches of their streams.

`StreamReader` works with PySpark 4.1 and later. From 4.2 on, Spark passes the start and the limit of each batch, and
supports the trigger that takes only the available data. Version 4.1 takes everything at once, so a limit is an error.

>>> check_options({"path": "a", "outptu": "b"}, ("path", "output"), (), "read a state", "")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: read a state with the option 'outptu': there is no such option; did you mean 'output'? ...
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar, Final

from pyspark.sql.datasource import DataSourceStreamReader

from ddflow.columns.names import did_you_mean
from ddflow.errors import MissingExtra, SpecError
from ddflow.partitions.driver_epochs import find_partitioning
from ddflow.plan.plan import Plan
from ddflow.storage.manifest import Manifest

LIMITS: Final = "pyspark.sql.streaming.datasource"
"""Module of limits, new in PySpark 4.2."""


def check_options(
    given: Iterable[str], known: Sequence[str], others: Iterable[str], asked: str, kind: str, remedy: str = ""
) -> None:
    """Raise `SpecError` for an unknown option and for any of ``others``. The case of names does not matter.

    ``others``: options of the other kind of query. ``asked``, ``kind``: describe the read in general, and this kind.
    """
    names = {name.lower(): name for name in known}
    for each in given:
        if each.lower() not in names:
            raise SpecError(
                f"{asked} with the option {each!r}", "there is no such option", did_you_mean(each, list(known))
            )
        if (name := names[each.lower()]) in others:
            found = "it is of the other kind of query"
            raise SpecError(f"{kind} with the option {name!r}", found, f"leave it out{remedy}")


def list_readable_partitions(plan: Plan, name: str, manifest: Manifest) -> list[tuple[int, int] | None]:
    """List the splits of an output or an input for tasks: a stage and a partition each, or None for all rows.

    O(nodes + partitions).
    """
    if manifest.partitions == 1 or not manifest.inventories or (found := find_partitioning(plan, name)) is None:
        return [None]
    return [(found.stage, number) for number in range(manifest.partitions)]


class StreamReader(DataSourceStreamReader):
    """A stream whose batches can have a limit. ``limit``: PySpark's class of limit. ``most``: the limit, or None.

    ``target``: the end of the stream for a query that takes only the available data; None without an end.
    """

    limit: ClassVar[str]
    most: int | None
    target: Any = None

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of a batch."""
        if self.most is None:
            return super().getDefaultReadLimit()
        return getattr(import_module(LIMITS), self.limit)(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the stream for a query that takes only the available data."""
        self.target = self.find_stream_end()

    def find_stream_end(self) -> Any:
        """Return the current end of the stream."""
        raise NotImplementedError


def check_limit_supported(most: int | None, asked: str) -> None:
    """Raise `MissingExtra` for a limit before PySpark 4.2."""
    try:
        import_module(LIMITS)
    except ImportError as error:
        if most is not None:
            raise MissingExtra(f"{asked}={most}", str(error), "pip install 'pyspark>=4.2'") from None


with suppress(ImportError):
    import_module(LIMITS).SupportsTriggerAvailableNow.register(StreamReader)
