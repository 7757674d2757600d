"""Access the objects below a prefix of a bucket with ``obstore``, and convert its errors to errors of ddflow.

Guarantees: `Bucket.put_if_absent` returns True only if this writer's object is at the key, and False only if another
object is there. An answer may be lost, and a retry may be refused because the first try succeeded. If the answer to a
put is not success, `put_if_absent` therefore reads the object at the key and compares it with the sent object.
`put_if_absent` raises `OutcomeUnknown` if the comparison is not possible.
Limits: obstore's threads do not survive a fork, so all methods raise `EngineClosed` in a forked child process.

>>> format_error(ValueError("no answer\\n in 30 s\\n\\nDebug source:\\nGeneric {...}"))
'no answer in 30 s'
>>> is_bucket_url("s3://bucket/state of/orders"), is_bucket_url("s3://bucket/../orders"), is_bucket_url("gs://bucket/orders")
(True, False, False)
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddflow.errors import (
    EngineClosed,
    OutcomeUnknown,
    StateRefused,
    StorageFailed,
    StorageFull,
    import_extra,
    mask_secrets,
)
from ddflow.storage.address import mask_address, parse_scheme

PIECE: Final = 8 << 20
"""The maximum number of bytes in one network request. Larger objects are sent in pieces, `AT_ONCE` pieces at a time."""

AT_ONCE: Final = 4
LOOKS: Final = 32
"""The maximum number of parallel requests, for requests with short answers."""
CLOUDS: Final = {"s3": ("S3Store", {"conditional_put": "etag", "disable_bulk_delete": True})}
"""For each scheme of an address: the name of the class in ``obstore.store``, and its configuration."""
_MOST_PARTS = 9_000  # S3 takes 10,000.
_RETRIES: Mapping[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=60), "backoff": {}}
_URL = re.compile(r"([a-z][a-z0-9]*)://[a-z0-9][a-z0-9.-]+[a-z0-9](?:/[^?#\0]*)?")
_FULL = re.compile(r"status code: 507|QuotaExceeded|StorageFull|StorageQuota")
_process = 0  # The id of the process that started obstore's threads.
_CONFLICT = "status code: 409"  # S3's answer to a conditional put while another put of the same key is not finished.


class ObjectMetadata(NamedTuple):
    """The metadata of an object, from a listing or a head request.

    ``written``: seconds since 1970, by the server's clock.
    """

    key: str
    length: int
    written: float


class Bucket:
    """The objects below a prefix of a bucket.

    ``url``: s3://bucket/prefix. ``options``: see `ddflow.storage.s3.S3Store`.

    A bucket has two clients of obstore. ``_many`` repeats requests that are safe to repeat. ``_once`` never repeats a
    request, and sends the conditional puts. A conditional put may arrive after the sender gave up, so only
    `put_if_absent` itself may retry.

    Every method raises `StorageFailed` or `StorageFull` if the bucket does not carry out a request. The constructor
    uses no network. The constructor raises `MissingExtra` without obstore, `StateRefused` for an invalid URL or
    options.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url, self._api = url, import_obstore()
        if not is_bucket_url(url):
            raise self.build_refusal(
                "it is not of the form s3://bucket/prefix",
                "use such a URL, or a folder; set keys in the environment (AWS_ACCESS_KEY_ID, ...)",
            )
        self._refuse_forked_process()
        errors = self._api.exceptions
        self._exists = errors.AlreadyExistsError
        self._refusals = (
            errors.PermissionDeniedError,
            errors.UnauthenticatedError,
            errors.InvalidPathError,
            FileNotFoundError,
            NotImplementedError,
        )
        self._failures = (errors.BaseError, OSError, ValueError, NotImplementedError)
        given = dict(options or {})
        retry: dict[str, Any] = {**_RETRIES, **given.pop("retry_config", {})}
        client = {"allow_http": _is_http_endpoint(given), **given.pop("client_options", {})}
        store, needed = CLOUDS[parse_scheme(url)]
        made, config = getattr(self._api.store, store), {**needed, **given}
        try:
            self._many, self._once = (
                made.from_url(url, config=config, client_options=client, retry_config=each)
                for each in (retry, {**retry, "max_retries": 0})
            )
        except (*self._failures, TypeError) as error:
            raise self.build_refusal(format_error(error), "correct the options, or the environment") from None
        first = retry["backoff"].get("init_backoff", timedelta(seconds=0.1)).total_seconds()
        self._waits = [0.0, *(min(15.0, first * 2.0**n) for n in range(retry["max_retries"]))]
        self._patience = retry["retry_timeout"].total_seconds()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Put an object if its key is free. Return whether the object at the key is the object of this call.

        No other writer may put the same ``data``. O(bytes). As long as the key is free, a failed put is retried as
        often as any other request. Raises `StorageFailed` if the object was not put, `OutcomeUnknown` if it may have
        been put or may still be put.
        """
        self._refuse_forked_process()
        doubt, began = "", time.monotonic()
        for wait in self._waits:
            time.sleep(wait)
            try:
                self._api.put(self._once, key, data, mode="create", use_multipart=False)
                return True
            except self._refusals as error:
                # A refusal is final only if no earlier try of this put can still arrive.
                if not doubt:
                    raise self.build_failure(f"put {key}", error) from None
                doubt = format_error(error)
            except self._failures as error:
                doubt = format_error(error)
            ours = self._has_bytes(key, data)
            if ours is not None:
                return ours
            if time.monotonic() - began > self._patience:
                break
        raise OutcomeUnknown(
            f"put {key} of {self.url}",
            f"no answer says whether it exists ({doubt})",
            "it may exist, or arrive later: open the state again and check",
        )

    def prove_conditional_put(self, key: str) -> None:
        """Check that a conditional put fails if the key exists. The key may exist from an earlier test.

        Raises `StateRefused`.
        """
        self._refuse_forked_process()
        done, why = 0, ""
        for wait in (each for each in self._waits for _ in range(2)):
            time.sleep(wait)
            try:
                self._api.put(self._once, key, b"", mode="create", use_multipart=False)
                done += 1
            except self._exists as error:
                why = format_error(error)
                if _CONFLICT not in why:
                    return
            except self._refusals as error:
                raise self.build_refusal(
                    format_error(error), "use a bucket that exists and that you may write to"
                ) from None
            except self._failures as error:
                why = format_error(error)
            if done > 1:
                raise self.build_refusal(
                    "two conditional puts of one key both succeeded, so two writers could both win",
                    "use a store that honours If-None-Match",
                )
        raise self.build_failure("prove the conditional put", why)

    def put_object(self, key: str, data: bytes) -> None:
        """Put an object. An existing object with the same key is replaced."""
        self._send_request(f"put {key}", self._api.put, self._many, key, data)

    def upload(self, key: str, path: str, length: int) -> None:
        """Upload a file as an object. No other writer may use the same key.

        O(bytes), with at most `AT_ONCE` pieces in memory. An upload in pieces is atomic, so an object with the full
        length is complete.
        """
        self._refuse_forked_process()
        chunk = max(PIECE, length // _MOST_PARTS + 1)
        try:
            self._api.put(self._many, key, Path(path), chunk_size=chunk, max_concurrency=AT_ONCE)
        except self._failures as error:
            with suppress(*self._failures):
                if self._api.head(self._many, key)["size"] == length:
                    return
            with suppress(*self._failures):
                self._api.delete(self._once, key)
            raise self.build_failure(f"put {key}", error) from None

    def open_object(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object. Return the length of the object, and an iterator over its pieces.

        The call and the iterator raise `FileNotFoundError`.
        """
        result = self._send_request(f"read {key}", self._api.get, self._many, key)
        length: int = result.meta["size"]
        return length, self._read_object_chunks(key, result, length)

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        """Read the bytes of an object from ``begin`` up to, but not including, ``end``. Raises `FileNotFoundError`."""
        return bytes(self._send_request(f"read {key}", self._api.get_range, self._many, key, start=begin, end=end))

    def head(self, key: str) -> ObjectMetadata:
        """Return the metadata of an object. Raises `FileNotFoundError`."""
        found = self._send_request(f"look at {key}", self._api.head, self._many, key)
        return ObjectMetadata(key, found["size"], found["last_modified"].timestamp())

    def find_object_lengths(self, keys: list[str]) -> dict[str, int]:
        """Return the lengths of the objects that exist. Sends one request per object, `LOOKS` requests at a time."""

        def length(key: str) -> tuple[str, int | None]:
            with suppress(FileNotFoundError):
                return key, int(self._send_request(f"look at {key}", self._api.head, self._many, key)["size"])
            return key, None

        with ThreadPoolExecutor(LOOKS) as pool:
            return {key: size for key, size in pool.map(length, keys) if size is not None}

    def delete(self, key: str) -> None:
        """Delete an object, or do nothing if it is missing."""
        with suppress(FileNotFoundError):
            self._send_request(f"delete {key}", self._api.delete, self._many, key)

    def delete_many(self, keys: list[str]) -> None:
        """Delete objects. Sends one request for each object, `LOOKS` requests at a time."""
        with ThreadPoolExecutor(LOOKS) as pool:
            list(pool.map(self.delete, keys))

    def list_objects(self, folder: str | None = None, all: bool = True) -> list[ObjectMetadata]:
        """List the objects of a folder, with one request for each 1,000 objects.

        ``all=False``: list only the first 1,000 objects. Raises `FileNotFoundError` if the bucket does not exist.
        """

        def chunks() -> list[ObjectMetadata]:
            found = []
            for chunk in self._api.list(self._many, folder, chunk_size=1000):
                found += [
                    ObjectMetadata(each["path"], each["size"], each["last_modified"].timestamp()) for each in chunk
                ]
                if not all:
                    break
            return found

        found: list[ObjectMetadata] = self._send_request(f"list {folder or 'everything'}", chunks)
        return found

    def build_refusal(self, found: str, remedy: str) -> StateRefused:
        """Build the error for a bucket that cannot be used."""
        return StateRefused(f"open the state {mask_address(self.url)}", found, remedy)

    def build_failure(self, what: str, error: Exception | str) -> StorageFailed | StorageFull:
        """Build the error for a request that the bucket did not carry out."""
        found = format_error(error)
        if _FULL.search(found):
            return StorageFull(f"{what} of {self.url}", found, "free space and open the state again")
        return StorageFailed(
            f"{what} of {self.url}", found, "check the network, the bucket and its keys, and open the state again"
        )

    def _read_object_chunks(self, key: str, result: Any, length: int) -> Iterator[bytes]:
        """Yield the bytes of an object. ``result``: the answer to the first request.

        The ranges of a large object are requested separately.
        """
        if length <= PIECE:
            yield self._send_request(f"read {key}", result.bytes)
            return

        def piece(begin: int) -> bytes:
            return self.read_range(key, begin, min(begin + PIECE, length))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for begin in range(0, length, AT_ONCE * PIECE):
                yield from pool.map(piece, range(begin, min(begin + AT_ONCE * PIECE, length), PIECE))

    def _refuse_forked_process(self) -> None:
        global _process
        _process = _process or os.getpid()
        if _process != os.getpid():
            raise EngineClosed(
                f"reach {self.url}",
                f"process {_process} used obstore before it forked this process",
                "start a new process instead (multiprocessing: spawn)",
            )

    def _has_bytes(self, key: str, data: bytes) -> bool | None:
        """Return whether an object has these bytes. Return None if the object is missing or cannot be read."""
        with suppress(*self._failures):
            result = self._api.get(self._once, key)
            return bool(result.meta["size"] == len(data) and bytes(result.bytes()) == data)
        return None

    def _send_request(self, what: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function of obstore, and convert its errors to errors of ddflow, except `FileNotFoundError`."""
        self._refuse_forked_process()
        try:
            return call(*given, **named)
        except FileNotFoundError:
            raise
        except self._failures as error:
            if "NoSuchBucket" in str(error):
                raise FileNotFoundError(format_error(error)) from None
            raise self.build_failure(what, error) from None


def is_bucket_url(url: str) -> bool:
    """Return whether ``url`` is a valid address of a bucket.

    The address may have a prefix, but the prefix must not contain ``.`` or ``..``.
    """
    found = _URL.fullmatch(url)
    return found is not None and found[1] in CLOUDS and not {".", ".."} & set(url.split("/"))


def format_error(error: Exception | str) -> str:
    """Return the text of an error on one line, without obstore's debug output and without passwords."""
    said = " ".join(str(error).split("\n\nDebug source")[0].split()) or type(error).__name__
    said = mask_secrets(said)
    return said if len(said) <= 400 else f"{said[:397]}..."


def _is_http_endpoint(options: Mapping[str, Any]) -> bool:
    """Return whether the endpoint uses http. Options take precedence over environment variables."""
    given = [str(options[name]) for name in options if name.lower().endswith(("endpoint", "endpoint_url"))]
    named = given or [os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")]
    return any(each.lower().startswith("http://") for each in named)


def import_obstore() -> Any:
    """Import obstore. Raises `MissingExtra`."""
    return import_extra("keep a state in S3", "s3", "obstore", "obstore.store")
