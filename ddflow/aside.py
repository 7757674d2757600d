"""Run a call on a new stack, so that its recursion depth does not depend on the caller."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def run_on_new_stack(call: Callable[[], T]) -> T:
    """Run ``call`` in another thread, wait, and return its result or raise its error.

    Use it for recursion over a value from a user or a store. Python's recursion limit counts the frames of a thread, so
    the depth of the caller would otherwise decide whether a nested value fits.

    >>> run_on_new_stack(lambda: 6 * 7)
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
