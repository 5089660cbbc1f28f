"""JSON Lines and text: any chunking equal, restart anywhere, faults with their places."""

from __future__ import annotations

import json
from typing import Any

import pytest
from examples_drawn import examples
from feeding import assert_any_chunking_equal, blocks_of, cut, limited, outcome, samples_of
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import FormatError
from asyncloader.formats.lines import JsonlDecoder, TextDecoder

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_OBJECTS = st.dictionaries(st.text(), _VALUES, max_size=4)
_SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def fault_of(decoder: JsonlDecoder | TextDecoder, body: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        samples_of(decoder, body)
    return caught.value


@examples(60)
@given(st.lists(_OBJECTS, max_size=8), _SIZES, st.sampled_from((b"\n", b"\r\n", b"\n\n \n")), st.booleans())
def test_jsonl_yields_the_objects_in_any_chunking_and_from_every_position(
    objects: list[dict[str, Any]], sizes: list[int], newline: bytes, ended: bool
) -> None:
    body = newline.join(json.dumps(item, ensure_ascii=False).encode() for item in objects)
    body += newline if ended else b""
    samples, positions, fault = assert_any_chunking_equal(JsonlDecoder, body, sizes)
    assert (samples, fault) == (objects, None)
    for index, position in enumerate(positions, 1):
        decoder = JsonlDecoder(start_sample=index, start_byte=position["byte"])
        assert outcome(decoder, cut(body[position["byte"] :], sizes)) == (
            samples[index:], positions[index:], None,
        )  # fmt: skip


@examples(60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), _SIZES)
def test_text_yields_the_lines_in_any_chunking_and_from_every_position(text: str, sizes: list[int]) -> None:
    body = text.encode()
    lines = text.removeprefix("\ufeff").split("\n")
    if not lines[-1]:
        lines.pop()
    expected = [{"__key__": str(index), "text": line.removesuffix("\r")} for index, line in enumerate(lines)]
    samples, positions, fault = assert_any_chunking_equal(TextDecoder, body, sizes)
    assert (samples, fault) == (expected, None)
    for index, position in enumerate(positions, 1):
        decoder = TextDecoder(start_sample=index, start_byte=position["byte"])
        rest, _, _ = outcome(decoder, cut(body[position["byte"] :], sizes))
        assert rest == expected[index:]


def test_only_newlines_separate_and_one_return_is_dropped() -> None:
    body = "a\u2028b\x0bc\x85d\r\r\n\n\r\ne".encode()
    texts = [sample["text"] for sample in samples_of(TextDecoder(), body)]
    assert texts == ["a\u2028b\x0bc\x85d\r", "", "", "e"]


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    mark = b"\xef\xbb\xbf"
    samples, positions, _ = assert_any_chunking_equal(JsonlDecoder, mark + b'{"a": 1}\n{"a": 2}\n')
    assert samples == [{"a": 1}, {"a": 2}]
    assert [position["byte"] for position in positions] == [12, 21]
    assert samples_of(TextDecoder(), mark) == []
    assert samples_of(TextDecoder(start_byte=9), mark + b"x")[0]["text"] == "\ufeffx"


def test_a_pointer_of_git_lfs_is_no_text() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
    for decoder in (TextDecoder(), JsonlDecoder()):
        with pytest.raises(FormatError, match="a Git LFS pointer: the file itself was not downloaded"):
            samples_of(decoder, pointer)
    assert len(samples_of(TextDecoder(), b"It begins with\n" + pointer)) == 4


def test_nan_and_infinity_are_read_as_by_json() -> None:
    assert samples_of(JsonlDecoder(), b'{"a": -Infinity}') == [{"a": float("-inf")}]


def test_an_empty_shard_of_lines_has_no_samples() -> None:
    assert samples_of(JsonlDecoder()) == samples_of(TextDecoder(), b"") == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"[1]", "an array"),
        (b'"x"', "a string"),
        (b"1", "a number"),
        (b"true", "a boolean"),
        (b"null", "null"),
    ],
)
def test_a_line_that_is_no_object_is_refused_and_named(line: bytes, found: str) -> None:
    samples, _, fault = assert_any_chunking_equal(JsonlDecoder, b'{"a": 1}\n\n' + line + b"\n{}\n")
    assert samples == [{"a": 1}]
    assert fault is not None
    assert f"found {found}" in fault[0]
    assert fault[1:] == (10, 1)


def test_a_line_that_does_not_parse_is_named_by_sample_offset_and_column() -> None:
    bad = '{"ü": 1, oops}'.encode()
    samples, _, fault = assert_any_chunking_equal(JsonlDecoder, b"{}\n{}\n" + bad + b"\n{}\n")
    assert samples == [{}, {}]
    assert fault is not None
    assert f"at byte {bad.index(b'oops')} of the line" in fault[0]
    assert "oops" in fault[0]
    assert fault[1:] == (6, 2)


def test_an_excerpt_of_a_long_line_is_bounded() -> None:
    error = fault_of(JsonlDecoder(), b'{"a": "' + b"x" * 100_000 + b'" oops}\n')
    assert "oops" in str(error)
    assert len(str(error)) < 300


def test_a_last_line_that_does_not_parse_may_be_truncated() -> None:
    body = b'{"a": 1}\n{"b": [1, 2]}'
    for length in range(10, len(body)):
        samples, _, fault = assert_any_chunking_equal(JsonlDecoder, body[:length])
        assert samples == [{"a": 1}]
        assert fault is not None
        assert "may be truncated" in fault[0]


def test_invalid_utf_8_is_named_by_its_offset() -> None:
    samples, _, fault = assert_any_chunking_equal(TextDecoder, b"ab\ncd\xffe\nf\n")
    assert samples == [{"__key__": "0", "text": "ab"}]
    assert fault is not None
    assert "invalid UTF-8" in fault[0]
    assert fault[1:] == (5, 1)
    error = fault_of(JsonlDecoder(), b'{"a": "\xff"}\n')
    assert "invalid UTF-8 at byte 7 of the line" in str(error)


@pytest.mark.parametrize(
    "line",
    [b"[" * 200_000, b'{"a":' * 200_000, b'{"a": ' + b"9" * 5000 + b"}"],
    ids=["array", "object", "int"],
)
def test_lines_made_to_exhaust_the_parser_are_refused(line: bytes) -> None:
    assert "jsonl" in str(fault_of(JsonlDecoder(), line + b"\n"))


def test_a_web_page_is_named() -> None:
    assert "web page" in str(fault_of(JsonlDecoder(), b"<!DOCTYPE html>\n"))


def test_a_line_above_the_limit_is_refused_in_any_chunking() -> None:
    most = 200_000  # more than is parsed at a time
    long = b"x" * (most + 1)
    for body in (b"ab\n" + long + b"\ncd\n", b"ab\n" + long, b"ab\n" + 2 * long):
        samples, _, fault = assert_any_chunking_equal(limited(TextDecoder, most_line_bytes=most), body)
        assert samples == [{"__key__": "0", "text": "ab"}]
        assert fault is not None
        assert "more than 200000 bytes" in fault[0]
        assert fault[1:] == (3, 1)
    whole = b"x" * most + b"\n" + b"y" * most
    assert len(samples_of(limited(TextDecoder, most_line_bytes=most)(), whole)) == 2


def test_blocks_are_bounded_in_samples_and_bytes() -> None:
    body = b'{"a": 1}\n' * 300_000  # more than one window
    blocks = blocks_of(JsonlDecoder(), [body])
    assert max(map(len, blocks)) <= 2048
    assert sum(map(len, blocks)) == 300_000
    assert blocks[-1].trail.after(len(blocks[-1]) - 1) == [{"sample": 300_000, "byte": len(body)}]
    long = b'{"a": "' + b"x" * (3 << 20) + b'"}\n'
    assert [len(block) for block in blocks_of(JsonlDecoder(), [long * 7])] == [1] * 7


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html>\n<html>\n", b"\xef\xbb\xbf  <html lang='en'>\r\n", b"<HTML><body>404</body>"]
)
def test_a_web_page_in_the_place_of_a_text_is_noticed(page: bytes) -> None:
    passed: list[FormatError] = []
    for decoder in (TextDecoder(), TextDecoder(pass_over=passed.append)):
        fault = fault_of(decoder, page)
        assert "expected lines of text; the bytes look like a web page" in str(fault) and fault.sample == 0
    assert not passed, "it is no line that is at fault"
    samples, _, fault_in_pieces = assert_any_chunking_equal(TextDecoder, page, (3,))
    assert samples == [] and fault_in_pieces is not None


def test_markup_elsewhere_in_a_text_is_text() -> None:
    body = b"a page:\n<!DOCTYPE html>\n<html>\n"
    assert [sample["text"] for sample in samples_of(TextDecoder(), body)] == body.decode().splitlines()
    assert len(samples_of(TextDecoder(start_sample=1, start_byte=8), body[8:])) == 2
    assert len(samples_of(TextDecoder(), b"<?xml version='1.0'?>\n<p>one</p>\n")) == 2
