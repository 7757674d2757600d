"""Handle the signals that end a run after its epoch, and call a function repeatedly until a block ends.

`call_on_signal` calls a function at the first SIGTERM or SIGINT. After the first signal, and at the end of the block,
the previous handlers of both signals are restored. Only the main thread may set handlers. On any thread except the main
thread, `call_on_signal` does nothing.

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
    """Delay the first signal until the block has ended.

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
    """Call a function on a thread, after ``first`` seconds and then every ``pause`` seconds, until the block ends.

    The ``with`` statement returns a function that starts the thread.

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
    """Call a function at the first SIGTERM or SIGINT during the block. The function gets the number of the signal."""
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
