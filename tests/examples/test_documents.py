"""The code in README.md and docs/ is that of the examples, and what the pages point to exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- (examples/\w+\.(?:py|sh)) -->\n\n?\Z")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FIRST_CODE_LINE = 15

#: What is between spaces or the bars of a table and has a letter or digit is a word, also in code and links.
_WORD = re.compile(r"[^\s|]*[^\W_][^\s|]*")
_MOST_WORDS = 40_000  # of README.md and docs/ together
_MOST_WORDS_OF_A_PAGE = 2_500
_MOST_LINES_OF_README = 130

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IN_REPOSITORY = PROJECT["urls"]["Source"] + "/blob/main/"


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
def test_blocks_are_excerpts_of_the_example_named_before_them_as_all_python_is(page: Path) -> None:
    for snippet in snippets(page):
        where = f"{name(page)}:{snippet.line}"
        assert snippet.language, f"{where}: say the language of the block"
        if snippet.language != "python" and not snippet.example:
            continue
        assert snippet.example, f"{where}: name the example it is taken from: <!-- examples/x.py -->"
        lines = (ROOT / snippet.example).read_text().splitlines()
        wanted = snippet.code.splitlines()
        assert wanted in _excerpts(lines, len(wanted)), f"{where} is no excerpt of {snippet.example}"


def _excerpts(lines: list[str], length: int) -> Iterator[list[str]]:
    for first in range(len(lines) - length + 1):
        # An excerpt from inside a function stands at the margin in the page.
        yield dedent("\n".join(lines[first : first + length])).splitlines()


def test_pages_are_short_enough_to_be_read() -> None:
    words = {name(page): len(_WORD.findall(page.read_text())) for page in PAGES}
    assert sum(words.values()) <= _MOST_WORDS, "shorten another page"
    assert {page: count for page, count in words.items() if count > _MOST_WORDS_OF_A_PAGE} == {}
    assert len((ROOT / "README.md").read_text().splitlines()) <= _MOST_LINES_OF_README


def test_a_word_has_a_letter_or_digit_and_ends_at_a_space_or_bar() -> None:
    found = _WORD.findall("| `map(f)` |12.5 %| - |\n|---|---|\nR\u00e4nge, of_x")
    assert found == ["`map(f)`", "12.5", "R\u00e4nge,", "of_x"]


def test_readme_shows_code_by_its_fifteenth_line() -> None:
    first = next(snippet for snippet in snippets(ROOT / "README.md") if snippet.language == "python")
    assert first.line <= _FIRST_CODE_LINE


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_links_work_on_a_package_index_and_lead_to_files_that_exist() -> None:
    prose = _FENCE.sub("", (ROOT / "README.md").read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert len(links) == prose.count("](") > 0, "a link stands where it is used: [text](https://...)"
    # A relative link would start from the index's own page.
    assert [url for url in links if not _is_in_repository(url)] == []


def test_project_urls_lead_to_files_that_exist() -> None:
    for url in PROJECT["urls"].values():
        assert not url.startswith(IN_REPOSITORY) or _is_in_repository(url), url


def _is_in_repository(url: str) -> bool:
    """Whether that is a file of ours, and has the heading that is pointed to."""
    path, _, anchor = url.removeprefix(IN_REPOSITORY).partition("#")
    if not url.startswith(IN_REPOSITORY) or not (ROOT / path).is_file():
        return False
    headings = _HEADING.findall((ROOT / path).read_text())
    return not anchor or anchor in {
        re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings
    }


def test_files_named_to_contributors_exist_but_those_to_be_written() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|yml))`", (ROOT / "docs/CONTRIBUTING.md").read_text())
    missing = {
        path for path in named if not any((top / path).exists() for top in (ROOT, ROOT / "asyncloader"))
    }
    rooms = {"stores/memory.py", "pipeline/drop.py"}
    tests = {"tests/stores/test_memory.py", "tests/ops/test_drop.py"}
    assert missing == {*rooms, *(f"asyncloader/{path}" for path in rooms), *tests}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_named_in_the_pages_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", page.read_text(), re.MULTILINE)
    assert {one or other for one, other in named} <= targets
