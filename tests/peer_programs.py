"""Programs for other libraries, run in the environment that has them; skipped where it was not made."""

from __future__ import annotations

import os
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

__all__ = ["peers_python", "run_peer"]

_ENVIRONMENT = Path(__file__).parent / "benchmarks/peers/environment.py"


def peers_python() -> Path:
    """The Python of the environment that ``make peers`` makes."""
    spec = spec_from_file_location("peers_environment", _ENVIRONMENT)
    assert spec is not None and spec.loader is not None
    environment = module_from_spec(spec)
    spec.loader.exec_module(environment)
    if not environment.is_made():
        assert "ASYNCLOADER_REQUIRE_SERVERS" not in os.environ, "the peers are not installed: make peers"
        pytest.skip("the peers are not installed: make peers")
    python: Path = environment.FOLDER / "bin" / "python"
    return python


def run_peer(program: Path, *arguments: str | Path) -> None:
    """Run a program of theirs to its end; its own words if it fails."""
    ran = subprocess.run(
        [str(peers_python()), str(program), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=140,
    )
    assert ran.returncode == 0, ran.stdout
