"""Define what happens at the end of a ``with`` block: close an object, or undo work if the block fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self


class Closing:
    """A base class for context managers: ``with`` returns the object itself, and calls its ``close`` at the end.

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
    """Call ``undo(*given)`` if the block raises any exception, then raise the exception again.

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
