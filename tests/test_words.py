"""No docstring, comment, message or page uses a word that this project has given up for a plainer one."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "asyncloader"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`]+?\1")
_TARGET = re.compile(r"\]\([^)]*\)|<!--.*?-->")

#: What is not written any more, as regular expressions, and what is written in its place.
GIVEN_UP = {
    r"\bresting\b": "idle",
    r"\b(?:whoever|whomever|whom)\b": "a noun: the caller, the consumer, the worker",
    r"\blest\b": "so that ... not, or: otherwise",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\b(?:is|are|was|were|be|been|being) told\b": "is logged, reported, passed",
    r"\b(?:can(?:not)? be|to be|were|was|been) had\b": "is available, unavailable, was read",
    r"\bask(?:s|ed|ing)? again\b": "retry",
    r"(?:^|[,;:(]) ?of which\b": "two sentences",
    r"\b(?:no|some)body\b": "a noun, or the passive",
    r"\b(?:as|if) it were\b|\bwere (?:much|large)\b": "would be",
    r"\bhand(?:s|ed|ing)? on\b": "pass on, passed on",
    r"\bh[eo]ld(?:ing|s)? (?:\w+ ){0,2}against\b": "check against, compare with",
    r"\bof another form\b": "in another format",
    r"\b(?:one|those|he) who\b": "a noun",
    r"\bg(?:o|oes) by\b": "uses, follows",
    r"\b(?:thereby|wherein|hereby|whence|thence|upon|till|shall)\b": "so, from which, on, until, must",
    r"\bneeds? not\b": "does not need to",
    r"\bin vain\b": "without a result",
    r"\bno more\b(?! than| of| such|\w)": "no longer, not any more",
    r"\bstandstills?\b": "stall",
    r"\brecipes?\b": "dataset",
    r"\btake leave\b": "reserve",
}


def texts_of(source: str) -> list[tuple[int, str]]:
    """Each comment, docstring and other string of a module, with its line; its own line breaks are spaces."""
    return [
        (token.start[0], " ".join(token.string.split()))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.STRING, tokenize.COMMENT)
        or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
    ]


def prose_of(page: str) -> list[tuple[int, str]]:
    """Each paragraph, list or table of a page, with its line. Code and the targets of links are left out."""
    page = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page)
    page = _CODE.sub(lambda code: "code" + "\n" * code[0].count("\n"), page)
    page = _TARGET.sub("]", page)
    return [
        (page.count("\n", 0, part.start()) + 1, " ".join(part[0].split()))
        for part in re.finditer(r"(?:[^\n]+\n?)+", page)
    ]


def given_up(texts: list[tuple[int, str]]) -> list[str]:
    """The places in texts that use a word which was given up."""
    return [
        f"{line}: {found[0].strip()!r} ({instead}) in: {text[max(found.start() - 40, 0) : found.end() + 40]}"
        for line, text in texts
        for pattern, instead in GIVEN_UP.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    "module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_text_of_the_package_uses_no_word_that_was_given_up(module: Path) -> None:
    assert given_up(texts_of(module.read_text())) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_of_the_pages_uses_no_word_that_was_given_up(page: Path) -> None:
    assert given_up(prose_of(page.read_text())) == []


def test_words_are_found_in_docstrings_comments_and_messages() -> None:
    source = '"""Whoever\nreads."""\nlest = 1  # lest it waits\nraise ValueError(f"{url} cannot be had")\n'
    assert [place.split(" in: ")[0] for place in given_up(texts_of(source))] == [
        "1: 'Whoever' (a noun: the caller, the consumer, the worker)",
        "3: 'lest' (so that ... not, or: otherwise)",
        "4: 'cannot be had' (is available, unavailable, was read)",
    ]


def test_words_are_found_in_prose_and_not_in_code() -> None:
    prose = "# Whoever\n\nRead `lest`, [dear](lest.md)\nand cannot\nbe had.\n\n"
    page = prose + "```python\nlest = 1\n```\n\n| lest |\n"
    assert [place.split(" in: ")[0] for place in given_up(prose_of(page))] == [
        "1: 'Whoever' (a noun: the caller, the consumer, the worker)",
        "3: 'dear' (expensive)",
        "3: 'cannot be had' (is available, unavailable, was read)",
        "11: 'lest' (so that ... not, or: otherwise)",
    ]
