"""The first page of a cached file: what is not sound is no header, whatever its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.cache.folder import HEADER_BYTES, MARK_BYTES, Header, mark_of

headers = st.builds(
    Header,
    st.text(max_size=300).filter(lambda text: text.isprintable() and Header.fits(text)),
    st.integers(0, 1 << 50),
    st.binary(min_size=32, max_size=32),
)


@given(headers, st.binary(max_size=100))
def test_a_header_comes_back_whatever_is_behind_it(header: Header, behind: bytes) -> None:
    assert Header.parse(header.encode() + behind) == header


@given(headers, st.data())
def test_one_changed_bit_is_no_header(header: Header, data: st.DataObject) -> None:
    page = bytearray(header.encode())
    at = data.draw(st.integers(0, len(page) - 1))
    page[at] ^= 1 << data.draw(st.integers(0, 7))
    assert Header.parse(bytes(page)) is None


@given(headers, st.data())
def test_a_header_cut_short_is_no_header(header: Header, data: st.DataObject) -> None:
    page = header.encode()
    assert Header.parse(page[: data.draw(st.integers(0, len(page) - 1))]) is None


@given(st.binary(max_size=HEADER_BYTES))
def test_garbage_is_no_header(page: bytes) -> None:
    assert Header.parse(page) is None


@given(headers, st.text())
def test_marks_are_behind_the_header_and_within_its_page(header: Header, run: str) -> None:
    offset, mark = mark_of(header, run)
    assert len(header.encode()) <= offset <= HEADER_BYTES - MARK_BYTES
    assert len(mark) == MARK_BYTES != mark.count(0)
    assert mark != mark_of(header, run + "x")[1]
