"""Parse, check and mask addresses that users write: folders, and URLs of buckets and databases.

Guarantees: an address with a scheme never becomes a folder. Without a check of the scheme, ``gs://bucket/orders`` would
become a folder ``gs:`` in the working directory, and the data would silently stay on one machine. `pathlib` turns
``s3://bucket`` into ``s3:/bucket``; this text also counts as an address with a scheme. `mask_address` hides user,
password, query and fragment in messages.
Limits: this module does not open addresses.

>>> mask_address("s3://KEY:SEC/RET@bucket/orders?X-Amz-Signature=00ff"), mask_address("state/a@b")
('s3://...@bucket/orders?...', 'state/a@b')
>>> require_folder("s3a://KEY:SECRET@bucket/orders", "write outputs to")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: write outputs to s3a://...@bucket/orders: s3a:// is not supported; use a folder of this ...
"""

import os
import re
from typing import Any, Final

from ddflow.errors import DdflowError, SpecError, StateRefused, mask_secrets

LOCAL: Final = "use a folder of this machine's file systems, without a scheme"
EITHER: Final = "use a folder, without a scheme, or s3://bucket/prefix"
_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):/")
_PRIVATE = re.compile(r"(\s*[A-Za-z][\w+.\-]*:/*).*@", re.DOTALL)
_UNCLEAR = re.compile(r"[?#=\s].*@", re.DOTALL)
_BEGINS = re.compile(r"([\w+.\-]*:/*|).*", re.DOTALL)
_BEHIND = re.compile(r"([?#]).*", re.DOTALL)


def parse_scheme(given: Any) -> str:
    """Return the scheme of an address, such as ``s3``, as the user wrote it. Return "" for a folder. O(length)."""
    found = _URL.match(_address_text(given))
    return found[1] if found else ""


def mask_address(given: Any) -> str:
    """Return an address without its secrets, for messages. O(length).

    A secret key may contain any character, so everything up to the last "@" is hidden.
    """
    text = _address_text(given)
    private = _PRIVATE.match(text)
    if not parse_scheme(text) and private is None and mask_secrets(text) == text:
        return text
    if (not parse_scheme(text) and private is None) or _UNCLEAR.search(text):  # a secret with "@"
        return _BEGINS.sub(r"\1...", text)
    return _BEHIND.sub(r"\1...", _PRIVATE.sub(r"\1...@", text))


def refuse_embedded_secret(given: str, remedy: str) -> None:
    """Raise `SpecError` for an address with a secret, because messages and states would show it. O(length).

    >>> refuse_embedded_secret("s3://KEY:SECRET@lake/t", "pass them as storage_options=")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: connect to s3://...@lake/t: messages would show the credentials in its address; ...
    """
    if mask_secrets(given) != given:
        raise SpecError(
            f"connect to {mask_address(given)}", "messages would show the credentials in its address", remedy
        )


def check_percent_encoding(url: str, what: str) -> None:
    """Check that reserved characters in the user and the password of a URL are percent-encoded. Raises `SpecError`.

    >>> check_percent_encoding("postgres://me:pass@db:5432/shop?user=a@b", "connect")
    >>> check_percent_encoding("postgres://me:pa/ss@db/shop", "connect")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: connect: its user or password has a character that ends it early; ...
    """
    found = re.match(r"\s*[\w+.\-]+:/*([^/?#]*)([^?]*)", url)
    before, path = found.groups() if found and "@" in url else ("", "")
    port = re.search(r":(?!\d*(?:,|$))", re.sub(r"\[[^\]]*\]", "", before))
    if before.count("@") > 1 or ("@" not in before and (port or (":" in before and "@" in path))):
        remedy = (
            "write it as %40 for @, %3A for :, %2F for /, %23 for #, %3F for ?; or pass it by other means, such as "
        )
        raise SpecError(what, "its user or password has a character that ends it early", remedy + "PGPASSFILE")


def require_folder(given: Any, asked: str, error: type[DdflowError] = StateRefused, remedy: str = LOCAL) -> Any:
    """Return an address unchanged if it is a folder. Raises ``error`` for an address with a scheme. O(length)."""
    if found := parse_scheme(given):
        raise error(f"{asked} {mask_address(given)}", f"{found}:// is not supported", remedy)
    return given


def _address_text(given: Any) -> str:
    return os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else ""
