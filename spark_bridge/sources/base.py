"""Check the options of data sources, and limit the batches of their streams.

`StreamReader` works with PySpark 4.1 and later. From 4.2 on, Spark gives the start and the limit of each batch, and
asks for the end of a query that takes what is available. 4.1 takes everything at once, so a limit is an error there.

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
"""The module of limits, new in PySpark 4.2."""


def check_options(
    given: Iterable[str], known: Sequence[str], others: Iterable[str], asked: str, kind: str, remedy: str = ""
) -> None:
    """Raise `SpecError` for an option that is not known, or one of the ``others``, in any case.

    ``others``: options of the other kind of query. ``asked``, ``kind``: what is read, in general and of this kind.
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
    """List the shares of an output or an input that tasks can read: a stage and a partition, or None for all of it.

    O(nodes + partitions).
    """
    if manifest.partitions == 1 or not manifest.inventories or (found := find_partitioning(plan, name)) is None:
        return [None]
    return [(found.stage, number) for number in range(manifest.partitions)]


class StreamReader(DataSourceStreamReader):
    """A stream whose batches have a limit, of a class of PySpark's: ``most``, or None for all there is.

    ``target``: where the stream ends for a query that takes what is available; None without an end.
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
        """Go no further than what is available now."""
        self.target = self.find_stream_end()

    def find_stream_end(self) -> Any:
        """Look where the stream ends now."""
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
