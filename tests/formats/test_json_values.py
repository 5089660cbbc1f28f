"""JSON Lines: whatever parses them, values and errors are those of ``json.loads`` for each line."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from decimal import Decimal, localcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
from drawn_columns import plain
from examples_drawn import examples
from feeding import blocks_of, cut, outcome
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Block, Columns, Rows, columns_of
from asyncloader.errors import FormatError
from asyncloader.formats.lines import JsonlDecoder

_MARK = b"\xef\xbb\xbf"
_SPACES = st.sampled_from(["", "", "", " ", "\t", "\r", " \n ", "\x0c", "\xa0"])
_NUMBERS = (
    st.integers().map(str)
    | st.floats().map(json.dumps)
    | st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.sampled_from(
        ["0", "-0", "-0.0", "01", "+1", "1.", ".5", "-", "1e", "1E5", "1e400", "-1e400", "1e-400"]
    )
    | st.sampled_from(["0e999999999999", "NaN", "-Infinity", "nan", "inf", "0x1", "1_0", "5e-324", "1e23"])
    | st.sampled_from(
        ["9007199254740993", "9007199254740993.0", "18446744073709551616", "-9223372036854775809"]
    )
)
_STRINGS = st.lists(
    st.characters(exclude_categories=["Cs"], exclude_characters='"\\')
    | st.sampled_from(
        ["\\u0000", "\\ud800", "\\uDc00", "\\ud83d\\ude00", "\\u00E9", "\\u12", "\\x", "\x7f", "\x01"]
    )
    | st.sampled_from([f"\\{escaped}" for escaped in '"\\/bfnrt'])
).map(lambda pieces: f'"{"".join(pieces)}"')
_KEYS = st.sampled_from(['""', '"a"', '"b"', '"\\u0061"', '"é"']) | _STRINGS


def _spaced(*texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*(part for text in texts for part in (_SPACES, text, _SPACES))).map("".join)


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(_spaced(_KEYS, st.just(":"), values), max_size=4)
    return members.map(lambda texts: f"{{{','.join(texts)}}}")


_VALUES = st.recursive(
    _NUMBERS | _STRINGS | st.sampled_from(["true", "false", "null", "None"]),
    lambda inner: (
        _objects(inner) | st.lists(_spaced(inner), max_size=4).map(lambda texts: f"[{','.join(texts)}]")
    ),
    max_leaves=6,
)
# Many of a kind: what is parsed as columns, and what is nearly that.
_INTEGERS = st.integers(0, 99_999).map(str) | st.integers(-(10**20), 10**20).map(str)
_LISTS = st.lists(_INTEGERS, max_size=6).map(", ".join) | st.lists(_INTEGERS, max_size=6).map(",".join)
_ALIKE = st.lists(
    st.tuples(
        _LISTS | _LISTS | st.lists(_NUMBERS, max_size=3).map(",".join) | st.just("[1], [2]"),
        _VALUES | st.integers().map(str),
    ).map(lambda drawn: '{{"a": [{}], "é": {}}}'.format(*drawn))
    | _LISTS.map(lambda numbers: f'{{"a":[{numbers}],"é":[{numbers}]}}')
    | st.sampled_from(['{"a": [1], "é": 2, "\\u0061": [3]}', '{"é": 1, "a": [1]}', '{"a": [1], "b": 1}']),
    max_size=6,
).map(lambda lines: "\n".join(['{"a": [5, 6], "é": 1}', *lines]).encode())
_LINES = (_objects(_VALUES) | _spaced(_objects(_VALUES)) | _VALUES).map(str.encode)
_BODIES = st.lists(_LINES | st.sampled_from([b'{"id": 17, "x": 0.5}', b"{}", b" \r"]), max_size=8).map(
    b"\n".join
)
# What is put over up to three bytes: an insertion, a deletion or a change.
_CHANGES = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 3),
        st.binary(max_size=2)
        | st.sampled_from([b"\n", b"\r\n", b"}\n{", b"},{", b"}{", b"[", b"]", b'"', b"\\"]),
    ),
    max_size=3,
)


def change(body: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, length, replacement in changes:
        at = place % (len(body) + 1)
        body = body[:at] + replacement + body[at + length :]
    return body


def read_plainly(body: bytes) -> tuple[list[Any], list[int], tuple[str, int] | None]:
    """By ``json`` alone: the samples, the offset after each, and what the error says and where."""
    samples: list[Any] = []
    ends: list[int] = []
    at = len(_MARK) if body.startswith(_MARK) else 0
    for line in io.BytesIO(body[at:]):
        line = line.removesuffix(b"\n")
        try:
            value = json.loads(str(line, "utf-8"))
            if type(value) is not dict:
                return samples, ends, ("jsonl: expected one object per line, found ", at)
            samples.append(value)
            ends.append(min(at + len(line) + 1, len(body)))
        except json.JSONDecodeError as error:
            if line.strip():
                column = len(error.doc[: error.pos].encode())
                return samples, ends, (f"jsonl: {error.msg} at byte {column} of the line", at)
        except UnicodeDecodeError as error:
            return samples, ends, (f"jsonl: invalid UTF-8 at byte {error.start} of the line", at)
        except ValueError as error:
            return samples, ends, (f"jsonl: {error}", at)
        at += len(line) + 1
    return samples, ends, None


def check(body: bytes, sizes: list[int]) -> None:
    expected_samples, expected_ends, expected_fault = read_plainly(body)
    for chunks, columns in product(([body], cut(body, sizes)), (False, True)):
        samples, positions, fault = outcome(JsonlDecoder(columns=columns), chunks)
        # As text, in which 1, 1.0 and True differ, 0.0 and -0.0 too, and NaN is itself.
        assert repr(samples) == repr(expected_samples)
        assert [position["byte"] for position in positions] == expected_ends
        assert (fault is None) == (expected_fault is None)
        if fault is not None and expected_fault is not None:
            assert fault[0].startswith(expected_fault[0])
            assert fault[1:] == (expected_fault[1], len(samples))


# To draw a body takes ten times as long as to check it: each is changed in three ways.
@examples(100)
@given(
    _BODIES,
    st.tuples(_CHANGES, _CHANGES, _CHANGES),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
def test_values_and_errors_are_those_of_json_for_each_line(
    body: bytes, ways: tuple[list[tuple[int, int, bytes]], ...], sizes: list[int]
) -> None:
    for changes in ways:
        check(change(body, changes), sizes)


@examples(300)
@given(_ALIKE, _CHANGES, st.lists(st.integers(1, 90), min_size=1, max_size=3))
def test_columns_have_the_values_and_errors_of_json_too(
    body: bytes, changes: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    check(body, sizes)
    check(change(body, changes), sizes)


@given(_ALIKE, st.integers(1, 60))
def test_columns_become_what_is_made_of_the_rows(body: bytes, size: int) -> None:
    # Some of these are no JSON. What comes before them is.
    blocks: list[Block] = []
    with suppress(FormatError):
        for chunk in cut(body, [size * 7]):
            blocks.extend(JsonlDecoder(columns=True).feed(chunk + b"\n"))
    for block in blocks:
        rows = Rows(block.rows(), block.trail)
        for one, other in ((block, rows), (block.take([0, 0]), rows.take([0, 0]))):
            try:
                expected = plain(columns_of(other))
            except ValueError:  # unequal fields
                assert not isinstance(one, Columns)
            else:
                assert plain(columns_of(one)) == expected


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": "\xff", "a": [1]}',  # what is no UTF-8, in a value that another one replaces
        b'{"a": %s, "a": [1]}' % (b"9" * 5000),  # more digits than Python converts, likewise
        b'{"a": {"a": [[%s]]}, "a": [1]}' % (b"9" * 5000),
        b'{"a": [1234567812345678]}',  # two words of digits, and more
        b'{"a": [-1234567812345678, 12345678, -123456789]}',
        b'{"a": [12345678123456789]}',
        b'{"a": [9223372036854775807, -9223372036854775808]}',
        b'{"a": [9223372036854775808]}',
        b'{"a": [-0, 0]}',
        b'{"a": [01]}',
        b'{"a": [1, [2]]}',
        b'{"a": [[2]]}',
        b'{"a": 2}',
        b'{"a": []}',
        b'{"a": [ ]}',
        b'{"a": [\t1]}',
        b'{"a": [true]}',
        b'{"a": [1.0]}',
        b'{"a": [1, null]}',
    ],
)
def test_a_line_that_is_unlike_those_before_has_the_value_of_json(line: bytes) -> None:
    good = b'{"a": [1, 23, 456]}'
    for lines in ([good, line], [good, line, good], [good, b'{"a": [[3]]}', line], [good, line, line]):
        check(b"\n".join(lines) + b"\n", [9])


def test_lists_of_integers_are_columns_where_somebody_has_a_use_for_them() -> None:
    body = b'{"a": [1, 2], "b": "x"}\n{"a": [], "b": null}\n'
    (block,) = blocks_of(JsonlDecoder(columns=True), [body])
    assert isinstance(block, Columns)
    assert plain(block.column("a").flat) == plain(np.array([1, 2]))
    assert all(not isinstance(block, Columns) for block in blocks_of(JsonlDecoder(), [body]))
    keyed = b'{"__key__": "x", "a": [1]}\n' * 2  # is told its shard, as a dict
    assert all(not isinstance(block, Columns) for block in blocks_of(JsonlDecoder(columns=True), [keyed]))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":\n1}\n{} {}\n{}',
        b'{"a": 1}{"b": 2}\n{"c":\n3}\n',
        b'{"a": {}\n{}}\n{} {}',
        b'{"a": [{}\n{}]}\n{} {}',
        b'{"a": "}\n{"}\n{} {}\n{}',
        b'{"a": 1},{"b": 2}\n{"c": [3\n]}',
        b"{}\n{} {}\n{}",
        b"{}\n\n{} {}\n{}",
        b"{}{}\r\n{\r}\n{\n}",
        b"[1]\n{}\n{}",
        b"{}\n{}\n[1]",
        b"{}\n{}\n{}x",
        b'{"a": 1}\r\n\r\n{"a": NaN}\n\x0c\n{"a": "\\udc00"}\n{"a": 1e999}\n{"a": 2}',
    ],
)
def test_a_value_over_two_lines_does_not_make_up_for_two_on_one(body: bytes) -> None:
    for ending in (b"", b"\n"):
        for before in (b"", b"{}\n" * 3):  # the first line of a chunk is parsed by itself
            check(before + body + ending, [3, 1])


def test_numbers_of_any_length_are_those_of_json() -> None:
    numbers = [f"{sign}{'7' * digits}" for sign in ("", "-") for digits in (18, 19, 20, 21, 309, 4300)]
    numbers += [str(2**power + step) for power in (53, 63, 64) for step in (-1, 0, 1)]
    with localcontext(prec=1200):
        for low in (0.1, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623155e308, 123456789.0):
            # Just between two floats, and a hair to either side, beyond what any parser keeps of the digits.
            middle = (Decimal(low) + Decimal(math.nextafter(low, math.inf))) / 2
            numbers += [f"{middle:E}", f"{middle:f}", f"-{middle:f}"]
            numbers += [f"{middle * (1 + step * Decimal('1e-1000')):E}" for step in (-1, 1)]
    check(b"\n".join(b'{"a": %s}' % number.encode() for number in numbers), [50])


def test_equal_keys_keep_the_place_of_the_first_and_the_value_of_the_last() -> None:
    check(b'{}\n{"a": 1, "b": 2, "\\u0061": {"": 1, "": 2}}\n{"": 0}', [4])


def test_many_objects_of_one_line_each_keep_their_positions() -> None:
    lines = [b'{"id": %d, "x": %r}' % (index, index / 7) for index in range(20_000)]
    check(b"\n".join(lines), [1 << 16, 999])
    check(b"\r\n".join(lines), [1 << 17])
    check(b"\n".join([*lines[:9_000], b'{"id": Infinity}', *lines, b"oops", *lines]), [1 << 16])
