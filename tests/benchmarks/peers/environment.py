"""The peers' environment: on top of the project's own, so that all use one torch, and apart from it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

__all__ = ["make_environment"]

ROOT = Path(__file__).resolve().parents[3]


def make_environment(folder: Path) -> str:
    """Install the peers into a virtual environment, once, and give its Python.

    Args:
        folder: Of the environment; made anew where the versions have changed since.
    """
    python = folder / "bin" / "python"
    stamp = folder / "constraints.txt"
    wanted = (ROOT / "constraints.txt").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"installing the peers into {folder}", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    # Behind its own packages, what this process finds: pip takes torch from there as installed.
    outer = [
        path for path in sys.path if path and not path.startswith((sys.base_prefix, str(ROOT / "tests")))
    ]
    Path(site, "outer.pth").write_text("".join(f"{path}\n" for path in outer))
    peers = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["peers"]
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *peers]
    subprocess.run(install, check=True)
    stamp.write_text(wanted)
    return str(python)
