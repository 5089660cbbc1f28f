"""What a notebook shows of a loader and of its report."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import asyncloader as al


class Tags(HTMLParser):
    """The tags of a text, which have to be closed as they were opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self._open.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def evil(sample: Any) -> Any:
    return sample


evil.__qualname__ = "<script>alert(1)</script>"


def test_a_loader_and_its_report_are_shown_with_what_names_hold_as_text() -> None:
    loader = al.DataLoader(al.from_iterable(list(range(500))).map(evil), batch_size=50)
    before: str = loader._repr_html_()
    assert "No batch was delivered yet" in before
    list(loader)
    shown = loader._repr_html_()
    report = loader.report()._repr_html_()
    for html in (before, shown, report):
        assert set(Tags(html).seen) <= {"style", "div", "p", "code", "span", "i", "b"}
        assert "<script" not in html
    assert "&lt;script&gt;" in shown and "10 batches" in shown
    assert "What to change" in report


def test_nothing_secret_is_shown() -> None:
    recipe = al.from_urls("https://user:password@host.invalid/a.tar?X-Amz-Signature=secret")
    shown: str = al.DataLoader(recipe)._repr_html_()
    assert "host.invalid" in shown
    assert not re.search("password|secret", shown)


def test_a_loader_of_torchs_kinds_is_shown_too() -> None:
    loader = al.DataLoader(list(range(100)), batch_size=10)
    list(loader)
    assert "10 batches" in loader._repr_html_()
