r"""Text for people, without the secrets of addresses and settings in it.

`mask_secrets` finds them by their form: user and password in front of an ``@``, parameters of an address, and settings
whose name says that they are secret, as libpq, librdkafka, Spark, JSON and Python write them. Every error of ddflow,
its log and its shell's lines on stderr go through it, with the words of drivers in them.

Guarantees: O(text). Never takes away a host, a path or a table. A password may have any character in it.
Limits: a setting of another name, or a password that is repeated alone, is not known to be one.

>>> mask_secrets("connect to postgres://me:p@ss/w:rd#1@db:5432/shop#t, with sslmode=require")
'connect to postgres://...@db:5432/shop#t, with sslmode=require'
>>> mask_secrets("host=db password='a b' user=me"), mask_secrets("{'sasl.password': 'x y', 'acks': 'all'}")
('host=db password=... user=me', "{'sasl.password': ..., 'acks': 'all'}")
>>> mask_secrets("https://lake/t?X-Amz-Signature=00ff&versionId=7 and s3://b/t?key=1")
'https://lake/t?X-Amz-Signature=...&versionId=7 and s3://b/t?key=...'
>>> mask_secrets("key=['id'], from mail@host")
"key=['id'], from mail@host"
"""

import re
from collections.abc import Iterable
from typing import Any, Final

_NAME: Final = (
    r"[\w.\-]*(?:password|passwd|passphrase|secret|token|credential|signature|jaas\.config"
    r"|(?:access|account|api|private|shared|service)[._\-]?key)[\w.\-]*|pwd"
)
_VALUE: Final = r"(?!\.\.\.)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&]+)"
_SPACED: Final = r"[^\s:/@]*:(?!\s|\d{1,5}(?:[/?#,;:)\s'\"]|$))[^\n]*@"
"""A password that may have spaces in it, because no port begins there."""
_SCHEME: Final = r"\b(?!abfss?:|wasbs?:)([a-z][a-z0-9+.\-]*:"
_USER: Final = re.compile(rf"(?i){_SCHEME}/+)(?:{_SPACED}|\S*@)|{_SCHEME})[^\s/]\S*@")
_SETTING: Final = re.compile(rf"(?i)(?<![\w.\-])((['\"]?)(?:{_NAME})\2\s*=\s*|(['\"])(?:{_NAME})\3\s*:\s*){_VALUE}")
_PARAMETER: Final = re.compile(r"(?i)(?<=[?&;])((?:[\w.\-]*(?:key|sig|auth|pass|pw|cred)[\w.\-]*|code)=)[^&\s'\"]*")
_PASSWORD: Final = re.compile(r"(?s)[a-zA-Z][\w+.\-]*://[^:/@]*:(.*)@")
_HINT: Final = re.compile(r"[=@]|['\"]\s*:")


_LEAST: Final = 4
"""Characters of a value that is left out wherever it is repeated."""


def mask_secrets(text: str, known: Iterable[Any] = ()) -> str:
    """Return the text with ``...`` for each secret, and for each of the ``known`` values of settings.  O(text)."""
    for value in sorted(map(str, known), key=len, reverse=True):
        found = _PASSWORD.match(value)
        for secret in (value, found[1] if found else ""):
            text = text.replace(secret, "...") if len(secret) >= _LEAST else text
    if not _HINT.search(text):
        return text
    text = _PARAMETER.sub(r"\1...", _SETTING.sub(r"\1...", text))
    return _USER.sub(lambda found: f"{found[1] or found[2]}...@", text)
