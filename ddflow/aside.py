"""Run a call on a new stack, so that the possible recursion depth does not depend on the caller."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def run_on_new_stack(call: Callable[[], T]) -> T:
    """Run ``call`` in another thread, wait, and return its result or raise its error.

    Use this function for recursion over a nested value from a user or a store. Python's recursion limit counts all
    frames of a thread, including the caller's frames. On a new thread, the same nesting depth works for every caller.

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
