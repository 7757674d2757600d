"""Signals that end a run behind its epoch, and what is done about what does not end then.

Invariant: the first SIGTERM or SIGINT calls what was given, and a second one does what it did before; behind the block
both do that. Only the main thread may set what signals do, so in others nothing is set.

>>> import os
>>> came = []
>>> with call_on_signal(lambda number: came.append("end")):
...     os.kill(os.getpid(), signal.SIGTERM)
>>> came
['end']
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def delay_signals() -> Iterator[None]:
    """Let the first signal wait until the block has ended.

    >>> import contextlib, os
    >>> with contextlib.suppress(KeyboardInterrupt):
    ...     with delay_signals():
    ...         os.kill(os.getpid(), signal.SIGINT)
    ...         print("all of it")
    all of it
    """
    came = list[int]()
    with call_on_signal(came.append):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def call_repeatedly(call: Callable[[], object], first: float, pause: float = 1.0) -> Iterator[Callable[[], None]]:
    """Call ``call`` after ``first`` seconds, and then every ``pause``; the yielded function starts the clock.

    A thread calls it, until the block has ended.

    >>> came = threading.Event()
    >>> with call_repeatedly(came.set, first=0.0) as begin:
    ...     begin()
    ...     came.wait(60)
    True
    """
    over = threading.Event()

    def insist() -> None:
        wait = first
        while not over.wait(wait):
            call()
            wait = pause

    try:
        yield threading.Thread(target=insist, daemon=True).start
    finally:
        over.set()


@contextmanager
def call_on_signal(call: Callable[[int], None]) -> Iterator[None]:
    """Call something with the first signal's number."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore_handlers() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: Any) -> None:
        call(number)
        restore_handlers()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore_handlers()
