"""Each frozen case gives what it gave when it was frozen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .cases import CASES, write_shards
from .freeze import FROZEN

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_shards(folder)
    return folder


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FROZEN.read_text())
    return found


@pytest.mark.parametrize("name", CASES)
def test_nothing_has_changed(name: str, folder: Path, tmp_path: Path, frozen: dict[str, Any]) -> None:
    case = CASES[name]
    given = json.loads(json.dumps(case.give(folder, tmp_path)))
    assert given == frozen[case.same_as or name]


def test_every_frozen_case_is_still_there(frozen: dict[str, Any]) -> None:
    assert set(frozen) == {name for name, case in CASES.items() if case.same_as is None}
