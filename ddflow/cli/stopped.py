"""A run on a state that stops half way: what is committed, where the rows of it are, and how to go on.

Invariant: the rows of a committed epoch are not lost where a file was written whole epochs at a time: the file is
completed under a name of its own, ``epochs-1-4.NAME``, and what comes next is named.  Otherwise the same files with
``--epoch`` give the rows again, of the last epochs that a state keeps.

>>> from ddflow.errors import NullKey
>>> class Half:
...     epoch = 3
>>> with told(Half, Course(3)):
...     Half.epoch = 5
...     raise NullKey("rows for 'input'", "the key is null", "mend them")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: rows for 'input': the key is null; mend them; epochs 4 to 5 are committed: the same files ...
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ddflow.cli.say import say
from ddflow.connectors.files import FileOutput
from ddflow.engine.epoch_log import KEPT
from ddflow.engine.run.signals import waiting
from ddflow.errors import DdflowError, OutputExists, UnwritableOutput

STOPS = (DdflowError, KeyboardInterrupt, SystemExit)


class Course:
    """The progress of a run.  ``before``: the state's epoch when it began; ``epoch``: the last one whose rows were
    written; ``rest``: the files behind; ``kept``: where the rows are."""

    def __init__(self, before: int) -> None:
        self.before = self.epoch = before
        self.rest: Sequence[str] = ()
        self.kept: list[str] = []
        self.given: tuple[int, Sequence[str]] = (before, ())
        """The epoch that is committed now, and the files behind it."""
        self.writing = False

    @contextmanager
    def writes(self) -> Iterator[None]:
        """Write all rows of an epoch: a signal waits until that is done."""
        with waiting():
            self.writing = True
            yield
            self.writing = False
            self.epoch, self.rest = self.given

    @contextmanager
    def keeping(self, outputs: Iterable[Any]) -> Iterator[None]:
        """Complete output files under new names if a run stops between two epochs."""
        try:
            yield
        except STOPS:
            for each in outputs if self.epoch > self.before and not self.writing else ():
                if isinstance(each, FileOutput) and each.written:
                    with suppress(OutputExists, UnwritableOutput):
                        self.kept.append(str(each.keep(f"epochs-{self.before + 1}-{self.epoch}")))
            raise

    def said(self, epoch: int) -> str:
        """Tell how to go on from the epoch of the state."""
        first = self.before + 1
        done = f"epochs {first} to {epoch} are committed" if epoch > first else f"epoch {first} is committed"
        if self.kept and self.rest and not self.writing:
            of = f"epochs {first} to {self.epoch}" if self.epoch > first else f"epoch {first}"
            there = f"the rows of {of} are in {', '.join(self.kept)}"
            more = f" and the {len(self.rest) - 1:,} behind it" if len(self.rest) > 1 else ""
            return f"{done}, {there}: go on with {self.rest[0]}{more}, --epoch {self.epoch + 1}, into another file"
        again = max(first, epoch - KEPT + 1)
        gone = "; rows of older epochs are not given again, and the state has their outcome" if again > first else ""
        files = "the same files" if again == first else f"the files from the {again - first + 1:,}th on"
        return f"{done}: {files} with --epoch {again} give their rows again, and go on{gone}"


@contextmanager
def told(engine: Any, course: Course) -> Iterator[None]:
    """Say which epochs were committed if a run is refused or stopped."""
    try:
        yield
    except STOPS as error:
        if engine.epoch == course.before:
            raise
        more = course.said(engine.epoch)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(more) from None
        if isinstance(error, SystemExit):  # SIGTERM, which says nothing of itself
            say(f"ddflow: terminated; {more}", err=True)
            raise
        raise error.change(fix=error.fix + f"; {more}") from None
