"""Run the command line of ddflow. Each verb has its own file, which is loaded on first use.

A verb ``v`` is a function ``v`` in ``ddflow/cli/v.py``, with its options as Typer annotations. `Verbs` loads every verb
and handles its exceptions, so a verb needs no error handling. This file and the top level of the verbs' files import
neither Arrow nor the compiler, so ``ddflow --version`` starts fast.

Guarantees: a verb that fails prints one message on stderr, without a traceback. The exit code is 0 for success, 1 for a
refusal of ddflow, 2 for wrong usage, 70 for a bug, 130 if interrupted, 141 if stdout was closed, 143 if terminated.
With ``--debug`` anywhere in the command line, the traceback is printed too.

>>> from typer.testing import CliRunner
>>> CliRunner().invoke(app, ["--version"]).output.startswith("ddflow ")
True
"""

import atexit
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ddflow.cli.say import say
from ddflow.cli.words import VERB, format_for_shell
from ddflow.errors import DdflowError, mask_secrets
from ddflow.terminal import escape_lines, escape_logs
from ddflow.version import __version__

VERBS: Final = (
    "diff",
    "count",
    "replace",
    "sql",
    "run",
    "sync",
    "compare",
    "inspect",
    "watch",
    "export",
    "why",
    "verify",
    "fsck",
    "gc",
    "rollback",
    "migrate",
    "rescale",
    "evolve",
    "errors",
    "warmup",
)
REFUSED, BUG, INTERRUPTED, NO_READER = 1, 70, 130, 141
AGAIN: Final = 0.02
"""Seconds until a signal is raised a second time, if its first exception was lost."""


WELCOME: Final = """\
ddflow: upsert streams in, difference streams out

Compare two files: which rows were added, removed or changed
    ddflow compare monday.csv tuesday.csv --key id

One file a day: write differences, with every retraction; or live counts
    ddflow diff monday.csv tuesday.csv --key id -o changes.parquet
    ddflow count monday.csv tuesday.csv --key id --by city --net

Query files in SQL
    ddflow sql "select city, sum(n) n from t group by city" t=monday.csv:key=id

Follow files, Postgres or a topic, and keep tables up to date
    ddflow run flow.py --state s --from 't=files:in/*.csv' --to t=sqlite:a.db#t

Inspect a state (--state), watch an output live, explain a row
    ddflow inspect s
    ddflow watch s by_city
    ddflow why s id=17

`ddflow VERB --help` shows examples, `ddflow --help` lists all verbs, and
`ddflow --install-completion` lets Tab complete them.
"""
"""The text that ``ddflow`` without arguments prints.

The text fits into 80 columns and 24 lines, and names only verbs and options that exist.
"""


class HelpWithoutTypes:
    """Remove the types of flags and named arguments from the help.

    ``--version <bool>`` would look as if the flag took a value.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of a command."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", True):  # an argument has no is_flag
                each.display_type_rich = lambda ctx: None
        return params


class Verb(HelpWithoutTypes, TyperCommand):
    """A verb of the command line."""


class Verbs(HelpWithoutTypes, TyperGroup):
    """The group of all verbs. The group loads each verb from its file, and handles the verb's exceptions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Help and "did you mean" need only the names of verbs, so get_command loads a verb later.
        self.commands: Any = dict.fromkeys(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a verb from its file; return None for an unknown name."""
        if cmd_name not in VERBS:
            return None
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        verb = getattr(importlib.import_module(f"ddflow.cli.{cmd_name}"), cmd_name)
        alone.command(
            cmd_name,
            cls=Verb,
            no_args_is_help=cmd_name in ("diff", "count", "replace", "sql", "run", "sync", "compare", "watch"),
        )(verb)
        command = typer.main.get_command(alone)
        VERB.set(command)
        return command

    def main(self, args: Sequence[str] | None = None, *positional: Any, **settings: Any) -> Any:
        """Run a command line. ``--debug`` may appear anywhere before a ``--``."""
        line = list(sys.argv[1:] if args is None else args)
        end = line.index("--") if "--" in line else len(line)
        self._line = line
        if "--debug" in line[:end]:
            line = ["--debug", *(word for word in line[:end] if word != "--debug"), *line[end:]]
        return super().main(line, *positional, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb under `exit_on_errors`."""
        with exit_on_errors(bool(ctx.params.get("debug")), self._line):
            return super().invoke(ctx)


@contextmanager
def exit_on_errors(debug: bool, line: Sequence[str] = ()) -> Iterator[None]:
    """Turn an exception of a verb into one message and an exit code.

    ``debug`` adds the traceback. ``line`` holds the words of the command line, which may be addresses with secrets.
    """
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as error:
        _report_error("interrupted" + (f"; {error}" if str(error) else ""), debug)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes stdout again at exit, and this flush would fail on a closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NO_READER) from None
    except DdflowError as error:
        _report_error(format_for_shell(error.message), debug)
        raise typer.Exit(REFUSED) from None
    except MemoryError as error:
        _report_error(
            f"out of memory: {str(error).strip() or 'an allocation failed'}; use smaller files, or more memory", debug
        )
        raise typer.Exit(REFUSED) from None
    except Exception as error:
        if hasattr(error, "exit_code"):  # wrong usage: Typer prints the message and exits with 2
            usage: Any = error
            usage.message = escape_lines(_mask_message(str(getattr(error, "message", error)), line))
            usage.args = (usage.message,)
            raise
        _report_error(
            f"{type(error).__name__}: {error}; this is a bug in ddflow: run again with --debug and report it", debug
        )
        raise typer.Exit(BUG) from None


def _mask_message(message: str, line: Sequence[str]) -> str:
    """Mask secrets in a message, because it may repeat words of the command line."""
    from ddflow.storage.address import mask_address

    for word in (part for each in line for part in (each, each.partition("=")[2])):
        message = message.replace(word, mask_address(word)) if word else message
    return mask_secrets(message)


def _report_error(message: str, debug: bool) -> None:
    if debug:
        say(traceback.format_exc().rstrip(), err=True)
    say(f"ddflow: {message}", err=True)


app = typer.Typer(cls=Verbs, invoke_without_command=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"ddflow {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. Also works after the verb.")] = False,
) -> None:
    """Turn upsert streams into difference streams.

    Exit codes: 0 done, 1 refused (the message says what was asked, what was found, what to do), 2 wrong usage,
    70 a bug in ddflow, 130 interrupted, 141 the reader of the output closed it, 143 terminated.
    """
    if context.invoked_subcommand is None:
        say(WELCOME)


def stop_on_signals() -> None:
    """Let SIGTERM end the process with an exception, so that half-written files are removed.

    If C code calls Python and drops the exception, as LLVM does while it compiles a kernel, the signal would be lost.
    In this case the signal is raised again after `AGAIN` seconds.
    """

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    def resend_signal(what: Any) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt | SystemExit):
            sys.__unraisablehook__(what)
            return
        number = signal.SIGINT if isinstance(what.exc_value, KeyboardInterrupt) else signal.SIGTERM
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, AGAIN)

    signal.signal(signal.SIGTERM, stop)
    sys.unraisablehook = resend_signal


def main() -> None:
    """Run the ``ddflow`` program."""
    escape_logs(mask_secrets)
    stop_on_signals()
    warnings.showwarning = _show_warning
    try:
        app()
    except SystemExit as error:
        if error.code:
            _exit_process(error.code)
        raise


def _show_warning(message: Warning | str, *where: Any, **how: Any) -> None:
    """Show a warning on one line; leave out the line of Python code that caused the warning."""
    given = message.args[0] if isinstance(message, Warning) and message.args else message
    say(f"ddflow: {format_for_shell(given if isinstance(given, str) else str(given))}", err=True)


def _exit_process(code: Any) -> None:
    """End the process with Python's clean-up, but without the clean-up of C libraries.

    If a verb stops halfway, Arrow's CSV reader may still read ahead. Arrow's exit handlers may then wait forever for a
    read that Arrow's stopped thread pool has dropped (apache/arrow issues 43604 and 50482).
    """
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else BUG)
