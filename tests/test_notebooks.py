"""Test the notebooks: each runs in a fresh kernel of this interpreter, and prints the stored output again.

For pictures, the tests check only that they exist. Run this file as a program to run all notebooks and store their
output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import nbformat
import postgres_server
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
PICTURES = "module://matplotlib_inline.backend_inline"
PATHS = re.compile(r"(?<![\w.:/<])/(?:[\w.+-]+/)+|\b[A-Z]:\\")
LARGEST = 500_000

NEEDS_POSTGRES = "02_postgres_live_counts"
RUNNABLE = [path for path in NOTEBOOKS if path.stem != NEEDS_POSTGRES or not postgres_server.lacking()]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook's cells in a fresh kernel whose working folder is ``folder``; what it stored before is left out.

    No installed kernel is looked for: ipykernel's own spec is this interpreter.  Raises `CellExecutionError`.
    """
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    kernel = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        connection_file=str(folder / "kernel.json"),
    )
    client = NotebookClient(
        fresh,
        km=kernel,
        timeout=600,
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(cleanup_kc=True, env=os.environ | {"IPYTHONDIR": str(folder), "MPLBACKEND": PICTURES})
    return cleaned(fresh)


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without what differs between two runs or two machines: timings, versions, what went to stderr."""
    notebook.metadata = nbformat.from_dict(KERNEL)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "metadata" in output:
                    output.metadata = nbformat.from_dict({})
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[tuple[str, str, str]]:
    """All that the cells put out: cell, kind, and the text, nothing of a picture.  Text on stdout is in one piece."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                found.append((cell.id, output.name, output.text))
            for kind, content in sorted(output.get("data", {}).items()):
                found.append((cell.id, kind, "" if kind.startswith("image/") else content))
    return [
        (*place, "".join(text for *_, text in parts)) for place, parts in groupby(found, key=lambda entry: entry[:2])
    ]


def stored(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def in_memory(*inputs: str) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell(input) for input in inputs])


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS != []


@pytest.mark.drawn(2)
@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_fresh_kernel_and_prints_what_it_has_stored(path: Path, tmp_path: Path) -> None:
    assert outputs(run(stored(path), tmp_path)) == outputs(stored(path))


@each_notebook
def test_a_notebook_is_stored_as_run_from_top_to_bottom(path: Path) -> None:
    notebook = stored(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {kind for _, kind, _ in outputs(notebook)}
    assert {"stdout", "image/png"} <= kinds
    assert "stderr" not in kinds
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


@each_notebook
def test_a_stored_notebook_is_small_and_clean(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    assert cleaned(stored(path)) == stored(path)


@each_notebook
def test_a_stored_notebook_names_no_place_of_a_machine(path: Path) -> None:
    said = "\n".join(text for *_, text in outputs(stored(path)))
    assert [match[0] for match in PATHS.finditer(said)] == []
    assert sys.prefix not in said


def test_a_place_of_a_machine_would_be_found() -> None:
    found = [
        bool(PATHS.search(text)) for text in ("see /var/lib/a.py", "'/srv/a/b'", "https://example.com/a/b/", "1 / 2")
    ]
    assert found == [True, True, False, False]


def test_the_kernel_is_this_interpreter_and_works_in_the_given_folder(tmp_path: Path) -> None:
    done = run(in_memory("import os, sys; print(sys.prefix); print(os.getcwd())", "print(1)\nprint(2)"), tmp_path)
    prefix, folder = outputs(done)[0][2].splitlines()
    assert Path(prefix) == Path(sys.prefix)
    assert Path(folder).samefile(tmp_path)
    assert outputs(done)[1][1:] == ("stdout", "1\n2\n")
    assert done.metadata == KERNEL and done.cells[0].metadata == {}


def test_a_cell_that_fails_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="frank is gone"):
        run(in_memory("raise KeyError('frank is gone')"), tmp_path)


def test_another_text_is_seen_and_another_picture_is_not() -> None:
    def notebook(text: str, picture: str) -> nbformat.NotebookNode:
        data = {"text/plain": text, "image/png": picture}
        cell = new_code_cell("frank", id="frank")
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
        return new_notebook(cells=[cell])

    assert outputs(notebook("oz", "AAAA")) == outputs(notebook("oz", "BBBB"))
    assert outputs(notebook("oz", "AAAA")) != outputs(notebook("zappa", "AAAA"))


def store_all() -> None:
    """Run all notebooks and store what comes out."""
    for path in RUNNABLE:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(stored(path), Path(folder)), path)
        print(f"notebooks/{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    store_all()


def test_the_notebook_alone_says_what_it_needs(tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / f"{NEEDS_POSTGRES}.ipynb", 4)
    cell = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    elsewhere = "import ddflow\nddflow.__file__ = '/nowhere/ddflow/__init__.py'\n"
    given = {name: value for name, value in os.environ.items() if name not in ("SHOP_URL", "PYTHONPATH")}
    words = [sys.executable, "-c", elsewhere + cell]
    done = subprocess.run(words, capture_output=True, text=True, env=given, cwd=tmp_path)
    assert done.returncode == 1 and "set SHOP_URL to the address of a Postgres" in done.stderr, done.stderr
