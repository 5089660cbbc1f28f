"""The peers' environment: on top of the project's own, so that all use one torch, and apart from it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

__all__ = ["FOLDER", "is_made", "make_environment"]

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / ".peers"

# mosaicml-streaming imports these names, for batches of tokenizers and images that no program here has. The
# transformers it asks for is too old for the other peers, and torchvision has to be of torch's own build.
_STAND_INS = {
    "torchvision/datasets": "class VisionDataset: pass\nclass CIFAR10: pass\n",
    "torchvision/transforms/functional": "def to_tensor(image): raise NotImplementedError\n",
    "transformers/feature_extraction_utils": "class BatchFeature(dict): pass\n",
    "transformers/models/auto/tokenization_auto": "class AutoTokenizer: pass\n",
    "transformers/tokenization_utils_base": "class BatchEncoding(dict): pass\n",
}


def is_made(folder: Path = FOLDER) -> bool:
    """Whether it is there, with the versions that are asked for now."""
    stamp = folder / "constraints.txt"
    return stamp.exists() and stamp.read_text() == (ROOT / "constraints.txt").read_text()


def make_environment(folder: Path = FOLDER) -> str:
    """Install the peers into a virtual environment, once, and give its Python.

    Args:
        folder: Of the environment; made anew where the versions have changed since.
    """
    python = folder / "bin" / "python"
    if is_made(folder):
        return str(python)
    print(f"installing the peers into {folder}", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # Behind its own packages, what this process finds: pip takes torch from there as installed.
    outer = [
        path for path in sys.path if path and not path.startswith((sys.base_prefix, str(ROOT / "tests")))
    ]
    (site / "outer.pth").write_text("".join(f"{path}\n" for path in outer))
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, *groups["peers"]], check=True)
    subprocess.run([*install, "--no-deps", *groups["peers-alone"]], check=True)
    for module, text in _STAND_INS.items():
        path = site / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    return str(python)


if __name__ == "__main__":
    make_environment()
