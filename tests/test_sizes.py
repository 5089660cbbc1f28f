"""How many bytes a batch is taken to hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncloader.blocks import Ragged, bytes_of


@pytest.mark.parametrize(
    ("batch", "size_bytes"),
    [
        (b"12345", 5),
        ("12345", 5),
        (np.zeros(4, np.int16), 8),
        (torch.zeros(2, 3), 24),
        (torch.eye(4).to_sparse(), 4 * 4 + 2 * 4 * 8),
        ({"graph": torch.eye(4).to_sparse(1), "label": 7}, 4 * 16 + 4 * 8 + 8),
        (Ragged(np.zeros(9, np.int16), [1, 3, 6]), 5 * 2 + 3 * 8),
        ({"words": Ragged(["ab"] * 3000, [0, 1000, 2000])}, 4000 + 3 * 8),
        (7, 8),
        (0.5, 8),
        (None, 0),
        (object(), 0),
        ([], 0),
        ({"tokens": torch.zeros(2), "names": ["a", "bc"], "extra": (b"123", None)}, 8 + 3 + 3),
        ([{"tokens": list(range(2000)), "key": "ab"}] * 3, 3 * (16000 + 2)),
        ([{"words": ["abc"] * 1000}], 3000),
        ([{f"{number}": b"12" for number in range(1000)}], 2000),
    ],
)
def test_data_is_counted_wherever_it_lies(batch: Any, size_bytes: int) -> None:
    assert bytes_of(batch) == size_bytes


class Sizeless:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("no size")


def test_what_cannot_tell_its_size_counts_nothing() -> None:
    assert bytes_of([Sizeless(), b"12"]) == 2


def test_each_sample_of_a_batch_is_counted() -> None:
    assert bytes_of([bytes(length) for length in range(1000)]) == sum(range(1000))


class Seen:
    """Counts how often its size is asked."""

    times = 0

    @property
    def nbytes(self) -> int:
        type(self).times += 1
        return 10


@pytest.mark.parametrize("length", [17, 100, 2000, 100_000])
def test_a_long_list_is_told_by_a_few_of_its_elements(length: int) -> None:
    Seen.times = 0
    assert bytes_of([{"boxes": [Seen() for _ in range(length)]}] * 4) == 4 * length * 10
    assert Seen.times <= 4 * 16
