"""Signals that end a run behind its epoch.

Invariant: the first SIGTERM or SIGINT calls what was given, and a second one does what it did before; behind the block
both do that. Only the main thread may set what signals do, so in others nothing is set.

>>> import os
>>> came = []
>>> with on_signal(lambda: came.append("end")):
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
def on_signal(call: Callable[[], None]) -> Iterator[None]:
    """Call something at the first signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restored() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: Any) -> None:
        call()
        restored()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restored()
