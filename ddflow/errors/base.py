"""The base of all errors: one message template.

Invariant: a message says what was asked, what was found and what to do, in that order and with the values, so that it
can be acted on without this package's source; and no secret of an address or a setting (`secrets`). The three
parts stay on the exception as fields, for programs. Classes are shown as of ``ddflow.errors``, whichever file they
stand in.

>>> error = DdflowError("cannot advance to 4", "the frontier is already 7", "times may not go back")
>>> str(error)
'cannot advance to 4: the frontier is already 7; times may not go back'
>>> error.found
'the frontier is already 7'
"""

from typing import Any

from ddflow.errors.secrets import mask_secrets


def cut(text: str, most: int = 300) -> str:
    """What messages repeat of a text that may be of any length: all of it, or its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


class DdflowError(Exception):
    """The base class of all errors of ddflow.  The message is ``asked: found; remedy``.

    Parameters
    ----------
    asked : str
        What was asked for.
    found : str
        What was found.
    remedy : str
        What to do about it.
    """

    row: str = ""
    """The cells of the row that it is of, where that is known."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__module__ = "ddflow.errors"

    def __init__(self, asked: str, found: str, remedy: str) -> None:
        asked, found, remedy = mask_secrets(asked), mask_secrets(found), mask_secrets(remedy)
        super().__init__(asked, found, remedy)
        self.asked, self.found, self.remedy = asked, found, remedy

    def __str__(self) -> str:
        return f"{self.asked}: {self.found}; {self.remedy}"


DdflowError.__module__ = "ddflow.errors"
