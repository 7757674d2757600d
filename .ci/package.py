"""Build the wheel and the sdist, check their contents, and try them in a fresh environment of each Python.

    .venv/bin/python .ci/package.py                 in a temporary folder, on the Pythons that are found
    .venv/bin/python .ci/package.py --keep dist     keeps the build, and requires a changelog of this version
    .venv/bin/python .ci/package.py --python /path/to/python3.13

Each environment gets the versions of requirements.lock for the dependencies of the wheel. First the core is tried
alone: it must import, step, and say what the command line needs. Then the extra ``shell`` is added.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.11", "python3.12", "python3.13")
CORE = """
import ddflow as dd
flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
flow.output("by_city", orders.filter("id > 0").count("city"))
with flow.open("state") as engine:
    engine.step({"id": [1, 2], "city": ["Bern", "Bern"]})
assert dd.read("state", "by_city").to_pylist() == [{"city": "Bern", "count": 2, "_diff": 1}]
for call in (lambda: dd.exporters.prometheus("orders"), lambda: dd.plot.changes({"_time": [1], "_diff": [1]})):
    try:
        call()
    except dd.errors.MissingExtra as error:
        assert "pip install 'ddflow[" in str(error)
    else:
        raise SystemExit("an extra is in the core")
"""


def ran(*command: object, code: int = 0, cwd: Path = ROOT) -> str:
    """Run a program and return its output; exit if its exit code is not ``code``."""
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"package: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def built(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist; a wheel built from the sdist must have the same files."""
    ran(sys.executable, "-m", "hatchling", "build", "-d", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        (unpacked,) = Path(place).iterdir()
        ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", Path(place) / "again", cwd=unpacked)
        (again,) = (Path(place) / "again").glob("*.whl")
        if contents(again) != contents(wheel):
            sys.exit(f"package: the sdist makes another wheel: {set(contents(again)) ^ set(contents(wheel))}")
    return wheel, sdist


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist() if not each.filename.endswith("RECORD")}


def check_contents(wheel: Path) -> None:
    """Check that the wheel has all files of the packages, no others, and the py.typed marks."""
    there = {name for name in contents(wheel) if ".dist-info/" not in name}
    listed = ran("git", "-c", "safe.directory=*", "ls-files", "ddflow", "spark_bridge").split()
    if there != set(listed):
        sys.exit(f"package: the wheel and git differ: {there ^ set(listed)}")
    if not {"ddflow/py.typed", "spark_bridge/py.typed"} <= there:
        sys.exit("package: py.typed is missing")


def tried(python: str, wheel: Path) -> str:
    """Install the wheel into a fresh environment and use it; return the version of Python."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        ran(python, "-m", "venv", place / "env")
        inside, program = place / "env" / "bin" / "python", place / "env" / "bin" / "ddflow"
        lock = (ROOT / "requirements.lock").read_text()
        (place / "versions").write_text("\n".join(re.findall(r"^[^\s#-][^\\\n]*(?= \\)", lock, re.MULTILINE)))
        how = ("--quiet", "--no-compile", "--disable-pip-version-check")  # imports compile what they need
        install = (inside, "-m", "pip", "install", *how, "-c", place / "versions")
        ran(*install, wheel, cwd=place)
        ran(inside, "-c", CORE, cwd=place)
        if "pip install 'ddflow[shell]'" not in ran(program, code=2, cwd=place):
            sys.exit("package: ddflow without the shell's libraries does not say what to install")
        ran(*install, f"{wheel}[shell]", cwd=place)
        ran(program, "--version", cwd=place)
        (place / "a.csv").write_text("id,city\n1,Bern\n2,Bern\n")
        counted = ran(program, "count", "a.csv", "--key", "id", "--by", "city", "--net", "-o", "-", cwd=place)
        if '"count":2' not in counted:
            sys.exit("package: ddflow count does not count")
        return ran(inside, "--version").strip()


def fitting(named: list[str] | None) -> list[str]:
    """Return the Pythons to try: the named ones, or all working ones that are found."""
    if named:
        return named
    found = [each for each in PYTHONS if shutil.which(each)]
    runs = [each for each in found if not subprocess.run([each, "-c", "import venv"], capture_output=True).returncode]
    return runs or [sys.executable]


def main() -> None:
    """Build, check and try the package."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--keep", type=Path, help="a folder for what was built; it is emptied first")
    parser.add_argument("--python", action="append", help="a Python to try; may be repeated")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        wheel, sdist = built(Path(name))
        check_contents(wheel)
        version = wheel.name.split("-")[1]
        if given.keep and f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
            sys.exit(f"package: CHANGELOG.md has no section of {version}")
        for python in fitting(given.python):
            print(
                f"package: ddflow {version} works on {tried(python, wheel)}, core alone and with its shell", flush=True
            )
        if given.keep:
            shutil.rmtree(given.keep, ignore_errors=True)
            given.keep.mkdir(parents=True)
            for each in (wheel, sdist):
                shutil.copy(each, given.keep)
                digest = hashlib.sha256(each.read_bytes()).hexdigest()
                print(f"{digest}  {given.keep / each.name}  {each.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
