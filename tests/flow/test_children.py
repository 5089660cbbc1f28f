"""A clean child finds the modules that this process would find, and starts nothing of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncloader.flow.process import clean_python, import_path


def test_a_child_has_this_processs_path_and_its_own_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the child imports first must come from the path, not from where it happens to start.
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend("/with \udcff and space")
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/ignored")])
    path = import_path()
    assert path[0] == "/with \udcff and space" and path[1] == str(Path.cwd())
    program = "import json; print(json.dumps([sys.path, sys.argv[1:], 'ASYNCLOADER_PROGRAM' in os.environ]))"
    command, environment = clean_python(program, "3", "two words")
    run = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path, env=environment)
    assert json.loads(run.stdout) == [path, ["3", "two words"], False]


def test_an_embedded_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match="num_workers=0, and name each shard"):
        clean_python("")
