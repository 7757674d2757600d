"""Test that pyright infers each type that ``user_types`` asserts, and finds each mistake that ``user_types`` marks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_pyright_sees_the_types_of_steps_reads_and_outputs(tmp_path: Path) -> None:
    settings = {
        "include": [str(ROOT / "tests" / "user_types.py")],
        "extraPaths": [str(ROOT)],
        "stubPath": str(ROOT / "typings"),
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": True,
        "enableTypeIgnoreComments": False,
        "reportUnknownMemberType": False,
        "reportUnusedExpression": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = [str(Path(sys.executable).parent / "basedpyright"), "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*program, "-p", str(tmp_path)], capture_output=True, text=True)
    told = json.loads(done.stdout)
    found = [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in told["generalDiagnostics"]]
    assert found == [] and told["summary"]["filesAnalyzed"] == 1
