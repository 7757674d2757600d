"""Provide S3 over HTTP as fixtures: moto's server, and a proxy that injects faults.

moto checks a key and then puts it, so two concurrent conditional puts could both win; in real S3, one wins. So moto
processes one request at a time. For each request, the proxy makes a random choice that depends on a seed. Some requests
never arrive, and some arrive only after the sender has given up. Other requests succeed but get no answer or a wrong
answer, or are refused.
"""

from __future__ import annotations

import http.client
import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest

Request = tuple[str, str, dict[str, str], bytes]
Answer = tuple[int, dict[str, str], bytes]

FAULTS: Final = {
    "lost": "never arrives, the connection is closed",
    "late": "arrives some requests later, the connection is closed",
    "silent": "is served, the connection is closed without an answer",
    "cut": "is served, the connection is closed in the middle of the answer",
    "500": "is not served, answered 500",
    "503": "is not served, answered 503",
    "hidden": "is served, answered 500",
    "denied": "a conditional put is served, answered 412 although it succeeded",
    "conflict": "a conditional put is not served, answered 409",
    "403": "is not served, answered 403",
    "slow": "is served, the connection is closed without an answer after a minute",
}
"""Faults that any request may have, by name."""


CONDITIONAL: Final = {"denied", "conflict"}
"""Faults that only conditional puts may have."""


BUCKETS = itertools.count(1)
"""The numbers of buckets.

Bucket numbers are unique in a process, because all servers of a process share the contents of moto.
"""


class Moto:
    """An S3 server of moto, whose requests take a lock, on a free port of the loopback address.

    ``url`` is its endpoint.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def one_at_a_time(environment: dict[str, Any], start: Any) -> list[bytes]:
            with lock:
                return list(application(environment, start))

        class Quiet(MotoRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log(self, *_: Any) -> None:
                pass

        self.server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def bucket(self) -> str:
        """Make an empty bucket; return its name."""
        name = f"bucket-{next(BUCKETS)}"
        status, _, body = forward(self.url, ("PUT", f"/{name}", {"Content-Length": "0"}, b""))
        assert status == 200, body
        return name


class Proxy:
    """A proxy to ``target`` that injects one of ``faults`` with probability ``rate`` (0 at first).

    Conditional puts are rare, so their fault rate is doubled. ``seen``: the number of times that each fault occurred.
    ``late``: delayed requests, each with the number of requests to wait for. ``conditions``: True if the conditions of
    puts are passed on.
    """

    def __init__(self, target: str) -> None:
        self.target, self.rate, self.faults = target, 0.0, tuple(FAULTS)
        self.random, self.seen, self.lock = random.Random(0), Counter[str](), threading.Lock()
        self.late: list[tuple[int, Request]] = []
        self.conditions, self.left = True, 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.pass_on(
                    self, (self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                )

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def fail(self, seed: int, rate: float, *faults: str, times: int = 1 << 60) -> None:
        """Inject these faults at this rate, at most ``times`` times.

        By default, inject all faults except the slow one.
        """
        self.faults = faults or tuple(each for each in FAULTS if each != "slow")
        self.rate, self.random, self.left = rate, random.Random(seed), times

    def calm(self) -> None:
        """Stop faults and deliver every delayed request."""
        self.rate = 0.0
        with self.lock:
            for _, request in self.late:
                forward(self.target, request)
            self.late.clear()

    def stop(self) -> None:
        """Stop accepting requests."""
        self.server.shutdown()
        self.server.server_close()

    def pass_on(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """Serve a request or inject a fault."""
        if not self.conditions:
            request[2].pop("if-none-match", None)
        fault, delay = self._choose(request)
        if fault == "late":
            self.late.append((delay, request))
        if fault in ("lost", "late"):
            return self._hang_up(handler)
        if fault in ("500", "503", "403", "conflict"):
            return self._answer(handler, (409 if fault == "conflict" else int(fault), {}, b"<Error/>"))
        status, headers, body = forward(self.target, request)
        if fault in ("silent", "slow"):
            time.sleep(60.0 if fault == "slow" else 0.0)
            return self._hang_up(handler)
        if fault == "cut":
            return self._answer(handler, (status, headers, body), cut=True)
        if fault in ("hidden", "denied") and status < 300:
            return self._answer(handler, (500 if fault == "hidden" else 412, {}, b"<Error/>"))
        return self._answer(handler, (status, headers, body))

    def _choose(self, request: Request) -> tuple[str, int]:
        """Choose a fault or "", and a delay. First deliver the delayed requests that are due."""
        with self.lock:
            due = [each for wait, each in self.late if wait <= 0]
            self.late = [(wait - 1, each) for wait, each in self.late if wait > 0]
            for each in due:
                forward(self.target, each)
            conditional = "if-none-match" in request[2]
            faults = self.faults if conditional else tuple(set(self.faults) - CONDITIONAL)
            if not faults or not self.left or self.random.random() >= self.rate * (2 if conditional else 1):
                return "", 0
            fault = self.random.choice(sorted(faults))
            self.seen[fault] += 1
            self.left -= 1
            return fault, self.random.randint(0, 12)

    def _hang_up(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        with suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, handler: BaseHTTPRequestHandler, answer: Answer, cut: bool = False) -> None:
        status, headers, body = answer
        handler.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        length = headers.get("Content-Length", "0") if handler.command == "HEAD" else str(len(body))
        handler.send_header("Content-Length", length)
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            handler.wfile.flush()
            self._hang_up(handler)


def forward(target: str, request: Request) -> Answer:
    """Send a request to an endpoint; return its answer."""
    connection = http.client.HTTPConnection(target.removeprefix("http://"), timeout=30)
    method, path, headers, body = request
    try:
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def options(url: str, **more: Any) -> dict[str, Any]:
    """Return the options of a store for this endpoint. The options allow three tries with short waits."""
    quick = {"max_retries": 2, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    return {"endpoint": url, "access_key_id": "id", "secret_access_key": "key", "retry_config": quick, **more}


@pytest.fixture(scope="session")
def moto() -> Moto:
    """Share one server in the complete test session."""
    return Moto()


@pytest.fixture
def proxy(moto: Moto) -> Iterator[Proxy]:
    """Provide a faulty proxy to the server for one test."""
    made = Proxy(moto.url)
    yield made
    made.stop()
