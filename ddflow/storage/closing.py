"""What is closed at the end of a ``with`` block, however the block ends."""

from __future__ import annotations

from typing import Self


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
        """Let go of what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
