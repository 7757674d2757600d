"""Run a proxy between client and server that can cut connections.

While ``frozen`` is set, the proxy accepts connections and bytes but forwards nothing, as if the network were lost. The
function ``seen`` gets the data of the server and returns the data for the client. If ``seen`` returns None, the
connection is cut before the client gets the data. A target with a leading ``/`` is the path of a socket.

>>> with Proxy(("127.0.0.1", 1)) as proxy:
...     proxy.port > 0
True
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Seen = Callable[[bytes], bytes | None]


class Proxy:
    """A proxy: ``with Proxy(target) as proxy`` listens on ``proxy.port`` of 127.0.0.1."""

    def __init__(self, target: str | tuple[str, int], seen: Seen = lambda data: data) -> None:
        self.target, self.seen, self.refuses, self.frozen = target, seen, False, False
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *failed: Any) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End all connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open = []

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                if self.refuses:
                    raise OSError
                unix = isinstance(self.target, str)
                server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
                server.connect(self.target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for two in ((client, server, self, False), (server, client, self, True)):
                threading.Thread(target=_pass, args=two, daemon=True).start()


def _pass(one: socket.socket, other: socket.socket, proxy: Proxy, back: bool) -> None:
    """Copy data from one socket to the other. ``back`` is True if the client is the receiver."""
    with suppress(OSError):
        while data := one.recv(1 << 16):
            while proxy.frozen:
                time.sleep(0.02)
            told = proxy.seen(data) if back else data
            if told is None:
                proxy.cuts += 1
                break
            other.sendall(told)
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
