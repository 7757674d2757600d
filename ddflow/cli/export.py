"""Write collections of a state to files: the verb ``ddflow export``.

`ddflow/tools/export.py` reads the contents. This file chooses the file names and writes the files.

Guarantees: a file gets its name only when it is complete.

>>> file_name("orders"), file_name("../x"), file_name(".hidden")
('orders', 'x-ade92630f33b0870', 'hidden-372051e37372c4c0')
"""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from ddflow.cli.arguments import AsOf, State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_count


def export(
    state: State,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", show_default=False, help="Outputs or inputs. Without it, all outputs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER|FILE",
            show_default=False,
            help="A folder for the files NAME.parquet, by default the current one; or one file, whose extension sets "
            "the format.",
        ),
    ] = None,
    as_of: AsOf = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Write the collections of a state to Parquet, CSV, JSON lines or Arrow files.

    The rows are those of the last commit, or of an earlier time that the state still keeps. If rows may repeat, each
    row is written once, with its multiplicity in a column `_diff`. Rows are read range by range, so you can export a
    state larger than memory. A writer may continue meanwhile.

    Examples:

    * `ddflow export state/orders -o exported/`

    * `ddflow export state/shop by_city -o cities.csv --as-of 2`
    """
    from ddflow.connectors.files import open_output
    from ddflow.engine.snapshot import Snapshot
    from ddflow.time import parse_time
    from ddflow.tools.export import open_contents

    done: list[dict[str, Any]] = []
    with ExitStack() as stack:
        snapshot = stack.enter_context(Snapshot.open(state, trust=trust))  # type: ignore[arg-type]
        at = None if as_of is None else parse_time(f"--as-of {as_of}", as_of, snapshot.flow.time_type)
        wanted = list(dict.fromkeys(names or snapshot.flow.outputs))
        read = {name: open_contents(snapshot, name, at) for name in wanted}
        paths = {name: _choose_path(name, output, len(wanted)) for name in wanted}
        opened = {name: stack.enter_context(open_output(paths[name], read[name][0], overwrite)) for name in wanted}
        for name in wanted:
            with show_amount_progress(f"writing {name}") as tick:
                for table in read[name][1]:
                    opened[name].write(table)
                    tick(table.num_rows)
            done.append({"name": name, "rows": opened[name].written, "file": str(paths[name])})
        epoch = snapshot.epoch
    what = f"of epoch {epoch}" if at is None else f"as of {as_of}"
    if as_json:
        say(json.dumps({"state": state, "epoch": epoch, "as_of": at, "written": done}))
    for each in done if not as_json else ():
        say(f"{each['name']}: {format_count(each['rows'], 'row')} {what} to {each['file']}", err=True)


def _choose_path(name: str, output: Path | None, many: int) -> Path:
    """Choose the path of a collection's file."""
    from ddflow.errors import UnwritableOutput

    if str(output) == "-":
        raise typer.BadParameter("export writes files: pass a folder or a file to -o")
    folder = Path() if output is None else output
    if output is not None and output.suffix and not output.is_dir():
        if many > 1:
            raise typer.BadParameter(f"one file cannot hold {many} collections: pass a folder to -o, or only one NAME")
        return output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableOutput(f"write to {folder}", str(error.strerror), "choose another folder") from None
    return folder / f"{file_name(name)}.parquet"


def file_name(name: str) -> str:
    """Return the name of a collection if it is a safe file name, else its safe part and a digest."""
    from ddflow.connectors.parquet.folder import build_folder_name

    return name if re.fullmatch(r"\w[\w.-]{0,99}", name) else build_folder_name(name)
