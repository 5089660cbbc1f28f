"""The wheel on the other Pythons that this machine has: what needs no torch passes its tests.

torch's build for another Python is seldom there, and takes longer to install than all else together. What has
no torch in it (the plan, the formats, blocks, recipes) is where a difference between Pythons would change a
promise. These tests install a few packages from an index.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .building import ROOT, Built, build, run

pytestmark = pytest.mark.slow

NEEDED = [
    "google-crc32c",
    "hypothesis",
    "pillow",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "zstandard",
]
TESTS = [
    "tests/blocks",
    "tests/plan",
    "tests/formats/test_fields.py",
    "tests/formats/test_json_values.py",
    "tests/formats/test_registry.py",
    "tests/formats/test_tar.py",
]

# Reading a recipe is torch's business as soon as there are batches; a head is samples.
PROGRAM = """
import asyncloader as al
with al.ShardWriter("train-{:02d}.tar", samples_per_shard=10) as writer:
    for number in range(25):
        writer.write({"__key__": str(number), "cls": number})
dataset = al.from_urls("train-{00..02}.tar").shuffle(100, seed=0).decode().map(lambda sample: sample["cls"])
samples = dataset.head(25)
assert sorted(samples) == list(range(25)) != samples, samples
assert not set(al.__all__) - set(dir(al))
"""


def other_versions() -> list[str]:
    """Those that the classifiers name, but the one that runs."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [text.rpartition(" ")[2] for text in classifiers if "Python :: 3." in text]
    return [version for version in named if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]


def find(version: str) -> str:
    """An interpreter of that version that starts: of the path, or one of pyenv's."""
    found = [shutil.which(f"python{version}") or ""]
    found += sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    for python in filter(None, found):
        # pyenv's commands are on the path for versions that are not chosen, too, and fail.
        started = subprocess.run([python, "-c", "import venv"], capture_output=True, timeout=20)
        if started.returncode == 0:
            return python
    pytest.skip(f"no Python {version} on this machine")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    built = build(tmp_path_factory.mktemp("built"))
    shutil.rmtree(built.source / "asyncloader")
    return built


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", other_versions())
def test_what_needs_no_torch_passes_its_tests(version: str, built: Built, tmp_path: Path) -> None:
    run(find(version), "-m", "venv", "--without-pip", "environment", folder=tmp_path)
    python = tmp_path / "environment/bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [text for text in project["dependencies"] if not text.startswith("torch")]
    # With the settings of this machine, such as where its index is.
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *needed, *NEEDED], check=True, timeout=300)
    subprocess.run([*pip, "--no-deps", "--no-index", str(built.wheel)], check=True, timeout=60)

    run(python, "-W", "error", "-c", PROGRAM, folder=tmp_path)
    # In place of what tests/conftest.py sets: the same examples each time, and none too slow.
    pytest_of = (python, "-m", "pytest", "-p", "no:cacheprovider", "--noconftest", "--hypothesis-profile=ci")
    told = run(
        *pytest_of, "-q", *without_torch(built.source),
        folder=built.source, timeout=300, PYTHONPATH=str(built.source / "tests"),
    )  # fmt: skip
    assert " passed" in told and version in run(python, "--version", folder=tmp_path)


def without_torch(source: Path) -> list[str]:
    """The modules among these that do not import it."""
    modules = [path for name in TESTS for path in _modules(source / name)]
    return [str(path) for path in modules if "import torch" not in path.read_text()]


def _modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("test_*.py"))
