"""The size of the package, held against the budget in ``pyproject.toml``.

The budget falls with every simplification. It rises only for a new capability, in a commit that names the
capability and its lines.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from test_layers import PACKAGE, imported_rooms, level_of, modules

import asyncloader

_SETTINGS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
BUDGET: dict[str, int] = _SETTINGS["tool"]["asyncloader"]["budget"]
#: Below this many code lines a file belongs into the one that uses it.
SMALL = 40
#: How far below its budget the number of code lines may be before the budget has to follow.
SLACK_LINES = 100

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """The lines of a source that hold code: no blank lines, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def sizes() -> dict[Path, int]:
    return {path: code_lines(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def class_names() -> Counter[str]:
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    return Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def deepest(room: str, below: dict[str, set[str]]) -> int:
    """How many rooms the longest chain of imports has that begins here."""
    return 1 + max((deepest(other, below) for other in below.get(room, ())), default=0)


@cache
def measured() -> dict[str, int]:
    files = sizes()
    below: dict[str, set[str]] = {}
    upward = 0
    for room, path in modules():
        for target, _ in imported_rooms(path):
            if target != room and target != "__version__":
                below.setdefault(room, set()).add(target)
                upward += level_of(target) >= level_of(room)
    below.pop("__main__", None)
    return {
        "code_lines": sum(files.values()),
        "files": len(files),
        "small_files": sum(
            lines < SMALL for path, lines in files.items() if path.name not in ("__init__.py", "__main__.py")
        ),
        "class_names_used_twice": sum(count > 1 for count in class_names().values()),
        "public_names": len(asyncloader.__all__),
        "layers": max(deepest(room, below) for room in below),
        "arrows_up": upward,
    }


@pytest.mark.parametrize("what", sorted(BUDGET))
def test_the_package_keeps_within_its_budget(what: str) -> None:
    found = measured()[what]
    assert found <= BUDGET[what], (
        f"{what}: {found}, and the budget in pyproject.toml is {BUDGET[what]}; simplify, or raise it in a "
        "commit that names the new capability"
    )
    slack = SLACK_LINES if what == "code_lines" else 0
    assert found >= BUDGET[what] - slack, f"{what}: only {found} now; lower the budget of {BUDGET[what]}"


def test_every_size_has_a_budget() -> None:
    assert set(measured()) == set(BUDGET)


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    lines = ['"""A module', 'of two lines."""', "", "# why", "x = (", "    1,", ")"]
    lines += ["", "def f() -> str:", '    """What."""', '    return """a', 'b"""']
    assert code_lines("\n".join(lines)) == 6
