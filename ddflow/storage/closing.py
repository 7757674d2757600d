"""Help with the end of a ``with`` block: close an object in any case, or undo work if the block fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self


class Closing:
    """A base class for context managers: ``with`` gives the object itself, and calls its ``close`` at the end.

    ``close`` may be called twice.

    >>> class Door(Closing):
    ...     def close(self) -> None:
    ...         print("closed")
    >>> with Door():
    ...     print("open")
    open
    closed
    """

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def undo_on_failure(undo: Callable[..., object], *given: Any) -> Iterator[None]:
    """Call ``undo`` if the block fails in any way, then raise the failure again.

    >>> with undo_on_failure(print, "undone"):
    ...     raise ValueError("it failed")
    Traceback (most recent call last):
        ...
    ValueError: it failed
    """
    try:
        yield
    except BaseException:
        undo(*given)
        raise
