"""The wheel works where the repository is not: its suite passes, in part, and the demonstration runs.

The tests are those of the unpacked sdist, without the package beside them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from .building import Built, build, install, run

pytestmark = pytest.mark.slow

#: Of every part of the library a little: what is pure, what starts processes, what reads over HTTP.
TESTS = [
    "tests/collate",
    "tests/end_to_end/test_exactly_once.py",
    "tests/plan",
    "tests/test_layers.py",
    "tests/test_loader.py",
    "tests/test_writer.py",
    "tests/workers",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    built = build(tmp_path_factory.mktemp("built"))
    shutil.rmtree(built.source / "asyncloader")
    return built


@pytest.fixture(scope="module")
def python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return install(built.wheel, tmp_path_factory.mktemp("environment"), packages)


def test_it_is_the_installed_one_that_is_imported(built: Built, python: Path) -> None:
    where = run(python, "-c", "import asyncloader; print(asyncloader.__file__)", folder=built.source)
    assert Path(where.strip()).is_relative_to(python.parents[1])


@pytest.mark.timeout(600)
def test_its_suite_passes(built: Built, python: Path) -> None:
    pytest_of = (python, "-m", "pytest", "-p", "no:cacheprovider", "-q")
    told = run(*pytest_of, *TESTS, folder=built.source, timeout=580)
    assert " passed" in told and "failed" not in told


def test_the_demonstration_runs(built: Built, python: Path) -> None:
    told = run(python, "examples/quickstart.py", folder=built.source)
    assert "samples delivered" in told


def test_its_types_are_seen(built: Built, python: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the dependency group 'lint'")
    told = run(python, "-m", "mypy", "--strict", "tests/typing", folder=built.source, timeout=140)
    assert "Success" in told
