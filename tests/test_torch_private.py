"""torch's private names are in one file, and what is made for releases of torch that are not here."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data.dataloader as torchs_loader

import asyncloader
from asyncloader.torch_private import TorchWorkerInfo, frozen_worker_info

PACKAGE = Path(asyncloader.__file__).parent
THE_FILE = "torch_private.py"

#: The facade overrides torch's hook for making iterators: a subclass has no other.
ALLOWED = {("loader/loader.py", "_get_iterator")}


def private_names_of_torch() -> set[str]:
    """What torch's loader and its iterators call their own, attributes of instances included."""
    assert torchs_loader.__file__ is not None
    tree = ast.parse(Path(torchs_loader.__file__).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {name for name in names if is_private(name)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def uses(path: Path, of_torch: set[str]) -> Iterator[tuple[int, str]]:
    """Where a module imports a private thing of torch's, or touches one of an object that may be torch's."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }
    imports_torch = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("torch"):
            imports_torch = True
            for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]:
                if is_private(name):
                    yield node.lineno, name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                imports_torch |= alias.name.startswith("torch")
                if alias.name.startswith("torch") and any(map(is_private, alias.name.split("."))):
                    yield node.lineno, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            in_torch = isinstance(root, ast.Name) and root.id == "torch"
            of_an_iterator = imports_torch and node.attr in of_torch and node.attr not in own
            if in_torch or of_an_iterator:
                yield node.lineno, node.attr
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("DataLoader" in ast.unparse(base) for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in of_torch:
                    yield method.lineno, method.name


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def test_no_other_file_uses_a_private_name_of_torch() -> None:
    of_torch = private_names_of_torch()
    assert {"_task_info", "_workers", "_get_iterator", "_MultiProcessingDataLoaderIter"} <= of_torch
    found = {
        (str(path.relative_to(PACKAGE)), name, line)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE) != Path(THE_FILE)
        for line, name in uses(path, of_torch)
    }
    assert {(path, name, line) for path, name, line in found if (path, name) not in ALLOWED} == set()


def test_the_search_would_find_them(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch, torch._utils\n"
        "from torch.utils.data import _utils, DataLoader\n"
        "def f(iterator):\n    return iterator._task_info, torch._C, torch.utils.data._utils\n"
        "class Mine(DataLoader):\n    def _get_iterator(self): ...\n"
    )
    found = {name for _, name in uses(wrong, private_names_of_torch())}
    assert found == {"torch._utils", "_utils", "_task_info", "_C", "_get_iterator"}


class _Older:
    """In the form that torch's had before it became a dataclass: any keyword, and closed once made."""

    _made = False

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._made:
            raise RuntimeError("Cannot assign attributes")
        super().__setattr__(name, value)


def test_an_older_worker_info_becomes_what_the_newer_one_is() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithRank(frozen_worker_info(_Older)):  # type: ignore[misc]
        rank: int = 0

    info = WithRank(id=1, num_workers=2, seed=3, dataset=[4], rank=5)
    assert isinstance(info, _Older)
    assert (info.id, info.num_workers, info.seed, info.dataset, info.rank) == (1, 2, 3, [4], 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.id = 7
    assert "rank=5" in repr(info)
    assert frozen_worker_info(TorchWorkerInfo) is TorchWorkerInfo
