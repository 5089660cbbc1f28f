"""The wheel works where the repository is not: every module can be imported, and the demonstration runs.

Both run in the unpacked sdist, without the package beside them. What the modules do, the suite has shown.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from .building import Built, build, install, run

pytestmark = pytest.mark.slow

EVERY_MODULE = """
import importlib, pkgutil, asyncloader
names = [found.name for found in pkgutil.walk_packages(asyncloader.__path__, "asyncloader.")]
for name in names:
    if not name.endswith(".__main__"):  # a program, which would begin
        importlib.import_module(name)
print(len(names), "modules")
"""


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


def test_every_module_of_it_can_be_imported(built: Built, python: Path) -> None:
    told = run(python, "-c", EVERY_MODULE, folder=built.source)
    assert int(told.split()[0]) > 50


def test_the_tests_of_the_sdist_run_with_it(built: Built, python: Path) -> None:
    # One file for all: the fixtures that all share, worker processes, and data that the tests write.
    told = run(
        python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/test_loader.py", folder=built.source
    )
    assert " passed" in told and "failed" not in told


def test_the_demonstration_runs(built: Built, python: Path) -> None:
    told = run(python, "examples/quickstart.py", folder=built.source)
    assert "samples delivered" in told


def test_its_types_are_seen(built: Built, python: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the dependency group 'lint'")
    told = run(python, "-m", "mypy", "--strict", "tests/typing", folder=built.source, timeout=140)
    assert "Success" in told
