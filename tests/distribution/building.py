"""What is released, built as a release is: the wheel out of the unpacked sdist, by the pinned backend."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Built", "build", "install", "run"]

ROOT = Path(__file__).resolve().parents[2]


class Built(NamedTuple):
    """The two archives, and the folder that the sdist unpacks to."""

    sdist: Path
    wheel: Path
    source: Path


def run(*command: object, folder: Path, timeout: float = 120, **environment: str) -> str:
    """What a command prints; its own words if it fails. It has nothing of this environment but the path."""
    ran = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def build(folder: Path) -> Built:
    """Build both archives into a folder."""
    hatchling = (sys.executable, "-m", "hatchling", "build", "--directory", folder)
    run(*hatchling, "--target", "sdist", folder=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    run(*hatchling, "--target", "wheel", folder=source)
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel, source)


def install(wheel: Path, folder: Path, others: Iterable[str]) -> Path:
    """Install the wheel alone into a new environment, over packages that are elsewhere, and give its Python.

    Args:
        wheel: What is installed.
        folder: Of the environment.
        others: Folders of installed packages. Their ``.pth`` files do not count, so that an editable
            installation of ours among them is none there.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python, "install")
    run(*pip, "--no-deps", "--no-index", wheel, folder=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("".join(f"{path}\n" for path in others))
    return python
