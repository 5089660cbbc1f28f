"""What a field holds, in a line."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Ragged
from asyncloader.cli.head import Preview, preview_field, preview_sample


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


CASES = [
    (b"7", Preview("bytes", None, None, 1, "7")),
    (b"\0\xff\xfe", Preview("bytes", None, None, 3, "")),
    ("h\u00e4\n", Preview("text", None, None, 4, r"hä\n")),
    ("x" * 99, Preview("text", None, None, 99, "x" * 57 + "...")),
    (True, Preview("bool", None, None, 8, "true")),
    (3, Preview("number", "int", None, 8, "3")),
    (np.float32(0.5), Preview("number", "float32", None, 4, "0.5")),
    (None, Preview("null", None, None, 0, "null")),
    (np.arange(12).reshape(3, 4), Preview("array", "int64", (3, 4), 96, "[0, 1, 2, 3, 4, 5, 6, 7, ...]")),
    ([1.5, 2], Preview("list", None, (2,), 16, "[1.5, 2]")),
    ([1, 2], Preview("list", "int", (2,), 16, "[1, 2]")),
    ({"a": {"b": 1}}, Preview("object", None, (1,), 8, '{"a": {"b": 1}}')),
    (Ragged.of([[1, 2], [3]]), Preview("list", None, (2,), 48, "[[1, 2], [3]]")),
]


@pytest.mark.parametrize(("value", "wanted"), CASES, ids=lambda value: type(value).__name__)
def test_values_are_told(value: Any, wanted: Preview) -> None:
    assert preview_field(value) == wanted


def test_an_array_in_bytes_is_told_by_its_header() -> None:
    content = npy(np.zeros((2, 3), np.int16))
    assert preview_field(content) == Preview("npy", "int16", (2, 3), len(content), "")
    assert preview_field(content[:20]).kind == "bytes"


def test_a_sample_that_is_no_mapping_has_one_field_without_a_name() -> None:
    assert [*preview_sample([1, 2])] == [""]


@given(st.binary(max_size=400) | st.text(max_size=400))
def test_nothing_that_a_terminal_obeys_is_shown(value: bytes | str) -> None:
    assert preview_field(value).beginning.isprintable()
