"""Rewrite the options and calls in error messages in the syntax of the shell.

The library does not know its caller, so its errors name options and calls in Python's syntax. `ShellSyntax` writes such
a name as an option of the running verb, if the verb has this option. All other text is unchanged.

>>> from ddflow.errors import DeclareFix, EvolveFix, Option, ErrorText, format_error_text
>>> words = ShellSyntax({"null_key": "--null-key", "types": "--types"})
>>> format_error_text("choose " + Option("null_key", "drop") + ", declare " + DeclareFix({"n": "double"}), words)
'choose --null-key drop, declare --types n=double'
>>> format_error_text(ErrorText(EvolveFix({"n": "int64"}, state="my state")), words)
"ddflow evolve 'my state' --types n=int64"
>>> format_error_text("null_key='drop'", words)
"null_key='drop'"
"""

import shlex
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from ddflow.errors import EvolveFix, FixSyntax, format_error_text

OTHERWISE: Final = {"group": "groups"}
"""Options whose names in Python are different."""
VERB: Final[ContextVar[Any]] = ContextVar("VERB", default=None)
"""The running verb, as a Typer command."""


class ShellSyntax(FixSyntax):
    """The syntax of the shell.

    ``options``: the verb's options, by their names in Python. ``tables``: True if the verb takes tables whose options
    follow the name of the file, as in ``ddflow sql``.
    """

    def __init__(self, options: Mapping[str, str], tables: bool = False) -> None:
        self.options, self.tables = options, tables

    def format_option(self, name: str, value: Any = ...) -> str:
        """See `FixSyntax.format_option`."""
        if name not in self.options:
            return super().format_option(name, value)
        if value is ... or value is None or isinstance(value, bool):
            return self.options[name]
        if isinstance(value, list):
            return f"{self.options[name]} {shlex.quote(','.join(map(str, value)))}"
        return f"{self.options[name]} {_quote_value(str(value))}"

    def format_types(self, types: Mapping[str, str]) -> str:
        """See `FixSyntax.format_types`."""
        return _format_types(types) if "types" in self.options else super().format_types(types)

    def format_input_types(self, input: str) -> str:
        """See `FixSyntax.format_input_types`."""
        return (
            f"{self.options['input']} {_quote_value(input)}"
            if "input" in self.options
            else super().format_input_types(input)
        )

    def format_evolve_call(self, fix: EvolveFix) -> str:
        """See `FixSyntax.format_evolve_call`."""
        given = [f"--input {shlex.quote(fix.input)}"] if fix.input else []
        given += [_format_types(fix.types)] if fix.types else []
        given += [
            f"--{name[:-1].replace('_', '-')} {shlex.quote(each)}"
            for name, all in fix.drop_options.items()
            for each in all
        ]
        return f"ddflow evolve {' '.join(['STATE' if fix.state is None else shlex.quote(fix.state), *given])}"

    def format_migration(self, fix: EvolveFix) -> str:
        """See `FixSyntax.format_migration`."""
        if fix.state is None:
            return super().format_migration(fix)
        return f"ddflow migrate {shlex.quote(fix.state)} NEW LOG... --whole {_format_types(fix.types)}"

    def format_engine_evolve_call(self, fix: EvolveFix) -> str:
        """Return an empty text, because a shell has no open engine."""
        return ""

    def format_verb(self, name: str) -> str:
        """See `FixSyntax.format_verb`."""
        return f"ddflow {name}"

    def format_file(self, path: str, options: Mapping[str, Any]) -> str:
        """Format a file with its options.

        The options of a file become options of the verb, or are appended to the name of the file or the source.
        """
        after = "".join(f":{name}={value}" for name, value in _flatten_options(options))
        if self.tables:
            return f"'NAME=FILE{after}'" if shlex.quote(after) == after else shlex.quote(f"NAME=FILE{after}")
        if "delimiter" in self.options:
            return " ".join(f"{self.options[name]} {_quote_value(value)}" for name, value in _flatten_options(options))
        if "from" in self.options:
            return f"{self.options['from']} {_quote_value(f'INPUT=files:PATTERN{after}')}"
        return super().format_file(path, options)

    def format_tombstone(self, column: str, value: Any = None) -> str:
        """See `FixSyntax.format_tombstone`."""
        rule = column if value is None else f"{column}={value}"
        if self.tables:
            return f":tombstone={rule}"
        if "tombstone" in self.options:
            return f"{self.options['tombstone']} {_quote_value(rule)}"
        return super().format_tombstone(column, value)


def format_for_shell(text: str) -> str:
    """Rewrite the options and calls in a text of the library in the syntax of the running verb. O(text)."""
    given = VERB.get()
    options = () if given is None else [each for each in given.params if each.opts and each.opts[0].startswith("-")]
    names = {OTHERWISE.get(each.name, each.name.rstrip("_")): each.opts[0] for each in options}
    return format_error_text(text, ShellSyntax(names, tables=given is not None and given.name == "sql"))


def _flatten_options(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of the name and the value of each option of a file. Several values give several pairs."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from ((name, f"{old}={new}") for old, new in value.items())
        else:
            yield from ((name, str(each)) for each in (value if isinstance(value, list) else [value]))


def _format_types(types: Mapping[str, str]) -> str:
    return f"--types {shlex.quote(','.join(f'{name}={kind}' for name, kind in types.items()))}"


def _quote_value(value: str) -> str:
    """Quote a value for a shell.

    A value that ends in a comma is quoted too, because the comma could look like punctuation of the message.
    """
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value and value.endswith(",") else quoted
