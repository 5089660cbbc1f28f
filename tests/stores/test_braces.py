"""Braces stand for the names that a shell makes of them, and are no larger for standing for many."""

from __future__ import annotations

import pickle
from itertools import chain, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.stores.names import Braces, has_unclosed_brace

_TEXT = st.text("ab-/.", max_size=3)


@st.composite
def _ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    first, width = draw(st.integers(0, 12)), draw(st.integers(0, 3))
    numbers = range(first, first + draw(st.integers(1, 4)))
    names = [str(number).zfill(width) for number in numbers]
    return f"{{{names[0]}..{names[-1]}}}", names


def _lists(inner: st.SearchStrategy[tuple[str, list[str]]]) -> st.SearchStrategy[tuple[str, list[str]]]:
    """A list of patterns; the expansion of each follows that of the one before."""
    return st.lists(inner, min_size=2, max_size=3).map(
        lambda options: (
            f"{{{','.join(pattern for pattern, _ in options)}}}",
            list(chain.from_iterable(names for _, names in options)),
        )
    )


def _rows(inner: st.SearchStrategy[tuple[str, list[str]]]) -> st.SearchStrategy[tuple[str, list[str]]]:
    """Patterns one behind the other; the last runs fastest."""
    return st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: (
            "".join(pattern for pattern, _ in parts),
            ["".join(name) for name in product(*(names for _, names in parts))],
        )
    )


PATTERNS = st.recursive(
    _TEXT.map(lambda text: (text, [text])) | _ranges(),
    lambda inner: _lists(inner) | _rows(inner),
    max_leaves=6,
)


@given(PATTERNS)
def test_a_pattern_stands_for_the_names_it_was_made_of(made: tuple[str, list[str]]) -> None:
    pattern, names = made
    braces = Braces(pattern)
    assert list(braces) == names
    assert [braces[index] for index in range(len(braces))] == names
    assert [braces[index - len(names)] for index in range(len(names))] == names
    assert braces[1:-1:2] == tuple(names[1:-1:2])
    assert list(pickle.loads(pickle.dumps(braces))) == names


@given(st.text("ab{},.0", max_size=14))
def test_whatever_is_in_braces_each_name_is_found_by_its_number(pattern: str) -> None:
    try:
        braces = Braces(pattern)
    except ValueError:  # a range that falls
        return
    assert [braces[index] for index in range(len(braces))] == list(braces)


def test_a_number_beyond_the_last_is_refused() -> None:
    with pytest.raises(IndexError):
        Braces("{0..9}")[10]


def test_ten_million_names_take_no_room() -> None:
    braces = Braces("s3://bucket/{a,b}/{0000000..4999999}.tar")
    assert len(braces) == 10_000_000
    assert braces[5_000_001] == "s3://bucket/b/0000001.tar"
    assert len(pickle.dumps(braces)) < 200


@pytest.mark.parametrize("text", ["{", "a{b", "}{", "{a}{", "{a{b}", "{{}"])
def test_an_open_brace_is_seen(text: str) -> None:
    assert has_unclosed_brace(text)
    assert not has_unclosed_brace(text.replace("{", ""))


@pytest.mark.parametrize("text", ["", "{}", "}", "{a}}", "{a,{b}}"])
def test_a_brace_that_is_closed_or_was_never_open_is_none(text: str) -> None:
    assert not has_unclosed_brace(text)
