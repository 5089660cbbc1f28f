"""Numbers as people give them: counts, and bytes with their unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.quantity import as_count, as_whole, parse_bytes, parse_rate, parse_seconds


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5)], ids=repr)
def test_a_whole_number_of_any_library_is_an_int(value: Any) -> None:
    assert type(as_whole(value)) is int
    assert as_count("batch_size", value) == parse_bytes("memory_limit", value) == 5


@pytest.mark.parametrize("value", [True, np.True_, 5.0, np.float64(5), "5", None], ids=repr)
def test_whatever_else_is_none(value: Any) -> None:
    assert as_whole(value) is None
    with pytest.raises(ValueError, match="batch_size should be a positive integer value, but got"):
        as_count("batch_size", value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GB", 10**10),
        ("1 GiB", 1 << 30),
        ("64MB", 64 * 10**6),
        ("512 MiB", 512 << 20),
        ("1.5 GB", 15 * 10**8),
        ("1.5 gib", 3 << 29),
        (" 100 kb ", 100_000),
        ("1KIB", 1024),
        ("2 TB", 2 * 10**12),
        ("1PiB", 1 << 50),
        ("7 B", 7),
        ("0.1 GB", 10**8),
    ],
)
def test_a_number_with_its_unit_is_so_many_bytes(text: str, size: int) -> None:
    assert parse_bytes("memory_limit", text) == size


@given(st.integers())
def test_an_int_is_what_it_is(size: int) -> None:
    assert parse_bytes("memory_limit", size) == size


@pytest.mark.parametrize(
    "text",
    ["", "10", "GB", "10G", "10 GBit", "-1GB", "1e9 B", "1,5 GB", "ten GB", "1 GB 2", ".5GB", "\u0661GB"],
)
def test_another_text_is_refused_with_those_that_are_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"cache_limit should be a number with its unit.*'10GB'") as caught:
        parse_bytes("cache_limit", text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [1e9, True, None, b"1GB", [1]])
def test_what_is_neither_number_nor_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"number of bytes.*'512 MiB'"):
        parse_bytes("cache_limit", value)


@pytest.mark.parametrize(("text", "rate"), [("40MB/s", 40e6), ("1 GiB/s", 1 << 30), ("7 B / s", 7)])
def test_bytes_by_the_second_are_a_rate(text: str, rate: float) -> None:
    assert parse_rate("--link", text) == rate


@pytest.mark.parametrize("text", ["", "40MB", "40/s", "40Mbit/s", "0B/s", "40MB/min", "/s"])
def test_another_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--link should be a number of bytes a second.*'40MB/s'"):
        parse_rate("--link", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("1.5 s", 1.5),
        ("20us", 20e-6),
        ("2min", 120),
        ("12h", 43200),
        ("1.5 d", 129600),
        ("2w", 1209600),
        ("0s", 0),
    ],
)
def test_a_time_with_its_unit_is_so_many_seconds(text: str, seconds: float) -> None:
    assert parse_seconds("--step", text) == seconds


@pytest.mark.parametrize("text", ["", "50", "ms", "-1s", "1e3s", "5m", "50 MS"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--step should be a time with its unit.*'50ms'") as caught:
        parse_seconds("--step", text)
    assert repr(text) in str(caught.value)
