"""The shape of the package: which room may import which, and laws that a look at the source can prove."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncloader

PACKAGE = Path(asyncloader.__file__).parent

#: The floors from the bottom up, with the rooms of each. A room imports only from floors below it.
FLOORS = [
    # The exceptions; the nouns; numbers and texts as people give and read them; files that appear whole.
    {"errors", "types", "quantity", "atomic_file"},
    # Runs of samples; tasks, threads and channels; who reads what; what torch has beyond what it documents.
    {"blocks", "flow", "plan", "torch_private"},
    {"device", "formats", "observe"},  # pinned memory; samples; what is counted
    {"collate", "stores", "workers"},  # batches; bytes; processes
    {"cache", "shards"},  # whole shards on disk; what shards should be
    {"pipeline"},  # the dataset
    {"torch_compat"},  # torch's kinds of dataset
    {"loader"},  # the facade
    {"tools"},  # what works on data sets rather than in a pass
    {"cli"},  # the command line
]
#: Modules of the package's root beside its face and its program.
LEAVES = FLOORS[0] | {"torch_private"}
#: The package as a program.
PROGRAM = "__main__"
#: The checking tools share nothing with what they check, and nothing of the library needs them.
APART = {"testing"}

#: Rooms and files without ``async``, clock and I/O, so that their rules can be tested as functions.
PURE = ["types.py", "quantity.py", "blocks", "plan", "formats", "collate", "stores/pacing.py"]
#: What lends memory does so for each thread.
PURE_BUT = {"blocks/memory.py"}


def level_of(room: str) -> int:
    for level, rooms in enumerate([*FLOORS, {PROGRAM}]):
        if room in rooms:
            return level
    pytest.fail(f"the room {room!r} has no floor in the table; which rooms may it import from?")


def modules() -> Iterator[tuple[str, Path]]:
    """Each module of the package with its room."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside != Path("__init__.py"):  # loads names lazily, wherever they live
            yield inside.parts[0].removesuffix(".py"), path


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    """The rooms that a module imports from, at its top or inside functions, and on which line."""
    package = ["asyncloader", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            name = [*above, *(node.module or "").split(".")] if node.module else above
            targets = [[*name, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "asyncloader" and len(target) > 1:
                yield target[1], node.lineno


def test_every_room_imports_only_from_rooms_below_it() -> None:
    upward = [
        f"{path.relative_to(PACKAGE)}:{line} imports {target}"
        for room, path in modules()
        if room not in APART
        for target, line in imported_rooms(path)
        if target != room and target != "__version__"
        if target in APART or level_of(target) >= level_of(room)
    ]
    assert not upward, "layers only point down:\n" + "\n".join(upward)


def test_the_checking_tools_import_nothing_of_what_they_check() -> None:
    shared = [
        f"{path.relative_to(PACKAGE)}:{line} imports {target}"
        for room, path in modules()
        if room in APART
        for target, line in imported_rooms(path)
        if target != room
    ]
    assert not shared


def test_the_house_is_the_one_of_the_table() -> None:
    rooms = set().union(*FLOORS) - LEAVES | APART
    assert {room for room, _ in modules()} == rooms | LEAVES | {PROGRAM}
    assert len(FLOORS) <= 10
    assert len(rooms) <= 17
    assert len(LEAVES) <= 5


def test_the_layer_test_would_see_an_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan").mkdir()
    wrong = tmp_path / "plan" / "wrong.py"
    wrong.write_text(
        "from ..loader import DataLoader\n"
        "from .. import run\n"
        "import asyncloader.pipeline.stream\n"
        "def f():\n    from asyncloader.pipeline.dataset import Dataset\n"
        "from .order import permutation\n"
        "from . import lanes\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    assert [target for target, _ in imported_rooms(wrong)] == [
        "loader",
        "run",
        "pipeline",
        "plan",
        "plan",
        "pipeline",
    ]


@pytest.mark.parametrize("place", PURE)
def test_a_pure_room_has_no_async_and_no_clock(place: str) -> None:
    paths = [path for _, path in modules() if path.relative_to(PACKAGE).is_relative_to(place)]
    paths = [path for path in paths if str(path.relative_to(PACKAGE)) not in PURE_BUT]
    assert paths
    for path in paths:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), path
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {node.module} if isinstance(node, ast.ImportFrom) else {a.name for a in node.names}
                assert not names & {"time", "asyncio", "threading", "socket", "aiohttp"}, path


def test_the_folder_of_the_cache_knows_neither_the_loop_nor_the_flow() -> None:
    for name in ("folder.py", "locks.py"):
        for node in ast.walk(ast.parse((PACKAGE / "cache" / name).read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert not {"asyncio", "flow", "store"} & {*(module or "").split(".")}, name


def sources(pattern: str) -> list[str]:
    """Where the pattern is in code of the library itself, comments and docstrings apart."""
    found = []
    for room, path in modules():
        if room not in APART:
            code = ast.unparse(_without_docstrings(ast.parse(path.read_text())))
            found += [
                f"{path.relative_to(PACKAGE)}: {line.strip()}"
                for line in code.splitlines()
                if re.search(pattern, line)
            ]
    return found


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body[0] = ast.Pass()
    return tree


def test_tasks_are_born_in_one_place() -> None:
    (only,) = sources(r"\b(create_task|ensure_future|run_coroutine_threadsafe)\b")
    assert only.startswith("flow/engine.py")


def test_nothing_sleeps_and_so_nothing_polls() -> None:
    # Its callers say why they wait, and for how long.
    assert sources(r"\bsleep\((?!0\))") == ["flow/engine.py: await asyncio.sleep(seconds)"]
    assert len(sources(r"\bpause\(")) == 4  # with its definition
    # Of no time, it waits for nothing: ``async for`` gives the loop's other tasks a turn.
    (only,) = sources(r"\bsleep\(0\)")
    assert only.startswith("loader/run.py")


def test_schemes_are_told_apart_in_their_tables_alone() -> None:
    places = {line.partition(":")[0] for line in sources(r"['\"](s3|gs|az|hf)(://)?['\"]")}
    # The last is what AWS calls its service, in the shared files.
    assert places == {"stores/urls.py", "stores/objects/clouds.py"}


def test_no_wait_has_a_default_bound_on_queues() -> None:
    assert sources(r"\b(asyncio|queue)\.(Simple|Lifo|Priority)?Queue\b") == []


def test_no_cancellation_is_swallowed() -> None:
    swallowing = []
    for room, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler) or room in APART:
                continue
            caught = {
                name.id
                for name in ast.walk(node.type or ast.Name("BaseException"))
                if isinstance(name, ast.Name)
            }
            caught |= {
                name.attr for name in ast.walk(node.type or ast.Pass()) if isinstance(name, ast.Attribute)
            }
            inside = [part for statement in node.body for part in ast.walk(statement)]
            raises = any(isinstance(part, ast.Raise) for part in inside)
            hands_on = any(isinstance(part, ast.Name) and part.id == node.name for part in inside)
            if caught & {"BaseException", "CancelledError"} and not (raises or hands_on):
                swallowing.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    # The programs of processes: what ends there is told by their exit status.
    assert [place for place in swallowing if not re.match(r"workers/_\w+_main\.py", place)] == []
    assert sources(r"suppress\(.*(CancelledError|BaseException)") == []


def _imported_by(statement: str) -> set[str]:
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(json.loads(run.stdout))


HEAVY = {
    "torch",
    "numpy",
    "aiohttp",
    "obstore",
    "uvloop",
    "tqdm",
    "cloudpickle",
    "asyncio",
    "multiprocessing",
}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert not _imported_by("import asyncloader") & HEAVY


def test_naming_the_commands_imports_nothing_heavy() -> None:
    assert not _imported_by("from asyncloader.__main__ import main") & HEAVY


def test_describing_a_recipe_imports_neither_torch_nor_a_client() -> None:
    statement = "import asyncloader as al; al.from_urls('s3://bucket/{0..9}.tar').shuffle(9).map(str)"
    assert not _imported_by(statement) & {"torch", "aiohttp", "obstore", "tqdm"}


def test_every_public_name_can_be_had_and_is_listed() -> None:
    for name in asyncloader.__all__:
        assert getattr(asyncloader, name).__module__.startswith("asyncloader")
    assert dir(asyncloader) == sorted(asyncloader.__all__) and len(asyncloader.__all__) <= 39
    stub = (PACKAGE / "__init__.pyi").read_text()
    imported = re.findall(r"^from \.([\w.]+) import (\w+) as \2$", stub, re.MULTILINE)
    assert {name: module for module, name in imported} == asyncloader._HOME, "what type checkers see"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        asyncloader.nonsense  # noqa: B018 - the access is the test


def test_names_that_moved_are_where_the_error_says() -> None:
    from asyncloader.pipeline.renamed import NAMES

    for name, place in NAMES.items():
        assert name not in asyncloader.__all__
        with pytest.raises(ImportError, match=re.escape(f"asyncloader.{name} is now {place}")):
            getattr(asyncloader, name)
        if re.fullmatch(r"asyncloader[\w.]+", place):
            module, _, attribute = place.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), place


def test_a_dataset_shows_what_a_user_calls() -> None:
    shown = [name for name in dir(asyncloader.Dataset) if not name.startswith("_")]
    assert shown == [
        *("class_names", "decode", "filter", "filter_batches", "head", "map", "map_batches", "rename"),
        *("repeat", "select_columns", "shuffle", "take"),
    ]


def test_all_errors_of_the_library_have_one_base_and_a_standard_one() -> None:
    errors = [getattr(asyncloader.errors, name) for name in asyncloader.errors.__all__ if name != "Error"]
    assert len(errors) == 5
    for error in errors:
        assert issubclass(error, asyncloader.Error)
        assert issubclass(error, OSError | ValueError | RuntimeError)


def test_importing_starts_nothing() -> None:
    program = (
        "import os, threading, importlib, pkgutil, asyncloader\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "for module in pkgutil.walk_packages(asyncloader.__path__, 'asyncloader.'):\n"
        "    if 'main' not in module.name: importlib.import_module(module.name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(len(os.listdir('/proc/self/fd')) - before)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) == 0


def test_commands_print_by_what_escapes_names() -> None:
    places = {line.partition(":")[0] for line in sources(r"(?<![\w.])print\(")}
    assert places == {"cli/__init__.py", "cli/printing.py"}
