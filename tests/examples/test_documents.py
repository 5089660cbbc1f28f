"""The code in README.md and docs/ is that of the examples, and what the pages point to exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- (examples/\w+\.py) -->\n\n?\Z")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FIRST_CODE_LINE = 15


class Snippet(NamedTuple):
    """A fenced block, its language, and the example named before it."""

    line: int
    language: str
    code: str
    example: str | None


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text()
    for block in _FENCE.finditer(text):
        marker = _MARKER.search(text, 0, block.start())
        line = text.count("\n", 0, block.start()) + 1
        yield Snippet(line, block[1], block[2], marker[1] if marker else None)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_are_excerpts_of_the_example_named_before_them(page: Path) -> None:
    for snippet in snippets(page):
        where = f"{name(page)}:{snippet.line}"
        assert snippet.language, f"{where}: say the language of the block"
        if snippet.language != "python":
            continue
        assert snippet.example, f"{where}: name the example it is taken from: <!-- examples/x.py -->"
        lines = (ROOT / snippet.example).read_text().splitlines()
        wanted = snippet.code.splitlines()
        assert wanted in _excerpts(lines, len(wanted)), f"{where} is no excerpt of {snippet.example}"


def _excerpts(lines: list[str], length: int) -> Iterator[list[str]]:
    for first in range(len(lines) - length + 1):
        # An excerpt from inside a function stands at the margin in the page.
        yield dedent("\n".join(lines[first : first + length])).splitlines()


def test_readme_shows_code_by_its_fifteenth_line() -> None:
    first = next(snippet for snippet in snippets(ROOT / "README.md") if snippet.language == "python")
    assert first.line <= _FIRST_CODE_LINE


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_named_in_the_pages_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", page.read_text(), re.MULTILINE)
    assert {one or other for one, other in named} <= targets
