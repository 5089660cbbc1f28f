"""The wheel has the package and nothing else, the sdist what its tests need; an index can show them."""

from __future__ import annotations

import email.message
import email.parser
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from .building import ROOT, Built, build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: A few times what it takes: it tells of a shard or a picture that slipped in.
LARGEST_WHEEL_BYTES, LARGEST_SDIST_BYTES = 2 << 20, 4 << 20


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.BytesParser().parsebytes(archive.read(name))


def test_the_wheel_has_every_module_and_that_it_is_typed_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = (ROOT / "asyncloader").rglob("*")
    wanted = {str(path.relative_to(ROOT)) for path in modules if path.is_file()}
    assert packed == {name for name in wanted if "__pycache__" not in name}
    assert "asyncloader/py.typed" in packed
    assert built.wheel.name.endswith("-py3-none-any.whl")


def test_the_sdist_has_what_its_tests_and_its_site_are_made_of(built: Built) -> None:
    there = {path.name for path in built.source.iterdir()}
    wanted = {
        "asyncloader",
        "tests",
        "docs",
        "examples",
        "constraints.txt",
        "Makefile",
        "README.md",
        "LICENSE",
    }
    assert wanted <= there
    assert not there & {".venv", ".peers", ".servers", "build", "dist"}


def test_they_are_small(built: Built) -> None:
    assert built.wheel.stat().st_size < LARGEST_WHEEL_BYTES
    assert built.sdist.stat().st_size < LARGEST_SDIST_BYTES


def test_an_index_is_told_what_it_needs(built: Built) -> None:
    told = metadata(built.wheel)
    assert (told["Name"], told["Version"]) == ("asyncloader", PROJECT["version"])
    assert told["Requires-Python"] == ">=3.11"
    assert told["License-Expression"] == "Apache-2.0" and told["License-File"] == "LICENSE"
    assert set(told.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    required = [text for text in told.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert len(required) == len(PROJECT["dependencies"])


def test_an_index_shows_the_readme(built: Built) -> None:
    told = metadata(built.wheel)
    assert told["Description-Content-Type"] == "text/markdown"
    shown = told.get_payload()
    assert isinstance(shown, str) and shown.strip() == (ROOT / "README.md").read_text().strip()
    # It shows no image or file that stands beside README.md in the repository.
    assert not re.search(r"\]\((?!https://|#)|<img ", shown)
