"""Check the options of data sources, and limit the batches of their streams.

`StreamReader` works with PySpark 4.1 and later. From version 4.2 on, Spark passes the start and the limit of each
batch, and supports the trigger ``availableNow``. PySpark 4.1 reads all available data in one batch, so a limit is an
error in PySpark 4.1.

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
"""The module with Spark's classes for limits, which is new in PySpark 4.2."""


def check_options(
    given: Iterable[str], known: Sequence[str], others: Iterable[str], asked: str, kind: str, remedy: str = ""
) -> None:
    """Raise `SpecError` for an unknown option, and for an option in ``others``, the other kind of query.

    The names of options may be in upper or lower case.

    ``others``: the options of the other kind of query, a batch or a stream. ``asked``: text for a read of any kind.
    ``kind``: text for a read of this kind. ``remedy``: the end of the remedy.
    """
    names = {name.lower(): name for name in known}
    for each in given:
        if each.lower() not in names:
            raise SpecError(
                f"{asked} with the option {each!r}",
                "there is no such option",
                did_you_mean(each, list(known), "options"),
            )
        if (name := names[each.lower()]) in others:
            found = "this kind of query does not have the option"
            raise SpecError(f"{kind} with the option {name!r}", found, f"omit it{remedy}")


def list_readable_partitions(plan: Plan, name: str, manifest: Manifest) -> list[tuple[int, int] | None]:
    """List the splits of an output or an input, one for each task. O(nodes + partitions).

    A split is a stage and a partition, or None for all rows.
    """
    if manifest.partitions == 1 or not manifest.inventories or (found := find_partitioning(plan, name)) is None:
        return [None]
    return [(found.stage, number) for number in range(manifest.partitions)]


class StreamReader(DataSourceStreamReader):
    """A stream whose batches can have a limit.

    ``limit``: the name of PySpark's class of limit. ``most``: the limit, or None. ``target``: the end of the stream for
    a query with the trigger ``availableNow``, else None.
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
        """Set the end of the stream for a query with the trigger ``availableNow``."""
        self.target = self.find_stream_end()

    def find_stream_end(self) -> Any:
        """Return the current end of the stream."""
        raise NotImplementedError


def check_limit_supported(most: int | None, asked: str) -> None:
    """Raise `MissingExtra` if a limit is given and PySpark is older than 4.2."""
    try:
        import_module(LIMITS)
    except ImportError as error:
        if most is not None:
            raise MissingExtra(f"{asked}={most}", str(error), "pip install 'pyspark>=4.2'") from None


with suppress(ImportError):
    import_module(LIMITS).SupportsTriggerAvailableNow.register(StreamReader)
