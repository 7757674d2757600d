"""Run the command line of ddflow, as the program ``ddflow`` or as ``python -m ddflow``.

The library works without the packages of the extra ``shell``, but the command line needs them. If a package is missing,
the program prints how to install it and exits with 2, the code for wrong usage. Any other failed import is a bug and
raises its error.

>>> main.__module__
'ddflow.__main__'
"""

import sys

SHELL = ("typer", "rich", "click")
"""The packages of the extra ``shell``."""


def main() -> None:
    """Run the command line."""
    try:
        from ddflow.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SHELL:
            raise
        found = f"{error.name} is not installed"
        print(f"ddflow: start the command line: {found}; pip install 'ddflow[shell]'", file=sys.stderr)
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
