"""A call on a stack of its own: how deep it may go does not depend on who calls."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, run in a thread of its own while this one waits.  Some 50 microseconds.

    Recursion over what a user or a store gave goes through here: Python's limit counts the frames of a thread, so what
    is taken in one place would be too deep in another.

    >>> aside(lambda: 6 * 7)
    42
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, name="ddflow aside", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]
