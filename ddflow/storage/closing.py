"""The end of a ``with`` block: an object is closed however it ends, or something is undone where it fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self


class Closing:
    """A class with a ``close`` that may be called twice; ``with`` gives the object itself.

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
    """Call ``undo`` if the block fails in any way; the failure goes on.

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
