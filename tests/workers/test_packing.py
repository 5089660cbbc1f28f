"""Packing keeps values, types, dtypes and strides; what is large is read back in place."""

from __future__ import annotations

import threading
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from examples_drawn import examples
from hypothesis import example, given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks.memory import LEAST_BYTES
from asyncloader.workers.packing import Bytes, pack, unpack

LARGE = LEAST_BYTES  # elements; in any dtype at least the limit in bytes

DTYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
]


def through_memory(batch: Any) -> tuple[Any, Bytes]:
    packed = pack(batch)
    memory = np.empty(packed.slot_bytes, np.uint8)
    packed.write(memory)
    return unpack(packed.message, memory, packed.at), memory


def roundtrip(batch: Any) -> Any:
    return through_memory(batch)[0]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return torch.equal(*bits)
    if isinstance(one, np.ndarray):
        # numpy itself brings a strided array of foreign byte order back in the machine's own.
        native = [array.astype(array.dtype.newbyteorder("=")) for array in (one, other)]
        return native[0].dtype == native[1].dtype and np.array_equal(*native)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (3, 0), (7,), (2, 3, 5), (129, 130), (4, 3, 64, 65)]))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).remainder(2 if dtype == torch.bool else 251).to(torch.uint8)
    tensor = raw.view(dtype).reshape(shape)
    if tensor.ndim > 1:
        tensor = draw(st.sampled_from([tensor, tensor.transpose(0, 1), tensor[1:], tensor.flip(0)[:, ::2]]))
    return tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = draw(st.sampled_from(["u1", "<i4", ">f8", "c8", "M8[s]", "S5", "O", [("a", "i2"), ("b", "f4")]]))
    count = draw(st.sampled_from([0, 5, 30_000]))
    array = np.zeros(count, dtype=dtype) if dtype == "O" else np.arange(count).astype("i4").astype(dtype)
    return draw(st.sampled_from([array, array[::2], array.reshape(-1, 1).T]))


sizes = st.sampled_from([0, 1, 100, LEAST_BYTES, 70_000, 300_000])
leaves = st.one_of(
    tensors(),
    arrays(),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=40),
    sizes.map(lambda size: b"x" * size),
    sizes.map(lambda size: bytearray(b"y" * size)),
    sizes.map(lambda size: "ä" * size),
)
batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@examples(150)
@given(batches)
@example({"empty": torch.empty((0, 3), dtype=torch.bfloat16)})
def test_any_nesting_comes_back_as_it_went(batch: Any) -> None:
    assert same(roundtrip(batch), batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_in_place(dtype: torch.dtype) -> None:
    tensor = torch.zeros(LARGE, dtype=dtype)
    back, memory = through_memory({"t": tensor, "a": 1})
    assert same(back["t"], tensor)
    memory[:] = 1
    assert back["t"].view(torch.uint8).bool().all()


def test_arrays_are_read_in_place_and_writable() -> None:
    back, memory = through_memory([np.zeros(LARGE, np.int16), np.zeros((200, 300), np.float32, order="F")])
    memory[:] = 1
    assert (back[0] == 257).all()
    assert back[1].flags.f_contiguous and back[1].any()
    back[0][3] = 7


def test_a_read_only_array_stays_read_only() -> None:
    array = np.zeros(LARGE, np.int16)
    array.flags.writeable = False
    assert not roundtrip(array).flags.writeable


def test_what_is_small_goes_with_the_message_and_what_is_large_does_not() -> None:
    labels = {"labels": torch.arange(64), "keys": ["a"] * 64}
    small, both, large = pack(labels), pack({"images": torch.ones(LARGE), **labels}), pack(b"x" * LARGE)
    assert small.message and not small.slot_bytes
    assert both.message and both.slot_bytes == LARGE * 4
    assert not large.message and large.slot_bytes > LARGE
    assert all(
        packed.size_bytes == len(packed.message) + packed.slot_bytes for packed in (small, both, large)
    )


def test_small_tensors_own_their_memory() -> None:
    back, memory = through_memory({"images": torch.ones(LARGE), "labels": torch.zeros(64, dtype=torch.int64)})
    memory[:] = 1
    assert not back["labels"].any()


def test_what_lies_in_place_is_aligned() -> None:
    back = roundtrip([torch.zeros(LARGE + odd, dtype=torch.uint8) for odd in range(5)])
    start = min(tensor.data_ptr() for tensor in back)
    assert all((tensor.data_ptr() - start) % 64 == 0 for tensor in back)


def test_ragged_columns_travel_with_their_own_values_alone() -> None:
    column = al.Ragged(np.arange(1_000_000), np.arange(0, 1_000_001, 1000))[3:5]
    batch, _ = through_memory([{"tokens": column, "views": list(column)}])
    assert batch[0]["tokens"].values.tolist() == list(range(3000, 5000))
    assert batch[0]["tokens"].tolist() == [view.tolist() for view in batch[0]["views"]]


def test_bytes_are_owned() -> None:
    batch = [b"x" * 94_000 for _ in range(3)]
    back, memory = through_memory(batch)
    memory[:] = 0
    assert back == batch


@pytest.mark.parametrize("shape", [(4, 3, 64, 64), (1, 3, 64, 64), (4, 1, 128, 128)])
def test_channels_last_images_keep_their_strides(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape).contiguous(memory_format=torch.channels_last)
    back = roundtrip(images)
    assert torch.equal(back, images)
    assert back.is_contiguous(memory_format=torch.channels_last)


def test_views_are_cut_to_what_they_show() -> None:
    whole = torch.arange(LARGE * 10)
    packed = pack(whole[:LARGE])
    assert packed.size_bytes < LARGE * 8 + 4096
    assert torch.equal(roundtrip(whole[::3]), whole[::3])
    assert torch.equal(roundtrip(torch.ones(5).expand(1000, 5)), torch.ones(1000, 5))


def test_conjugated_and_negated_views_keep_their_values() -> None:
    numbers = torch.randn(LARGE, dtype=torch.complex64)
    assert torch.equal(roundtrip(numbers.conj()), numbers.conj())
    assert torch.equal(roundtrip(numbers.conj().imag), numbers.conj().imag)


def test_two_views_of_one_storage_keep_their_values_and_one_object_stays_one() -> None:
    whole = torch.arange(LARGE)
    first, second, again = roundtrip([whole, whole[5:], whole])
    assert torch.equal(first, whole) and torch.equal(second, whole[5:])
    assert again is first


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_other_kinds_go_the_ordinary_way() -> None:
    sparse = torch.eye(4).to_sparse()
    assert torch.equal(roundtrip(sparse).to_dense(), torch.eye(4))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(LARGE)])
    assert [part.shape for part in roundtrip(nested).unbind()] == [(2,), (LARGE,)]
    parameter = roundtrip(torch.nn.Parameter(torch.ones(3)))
    assert isinstance(parameter, torch.nn.Parameter)
    tagged = torch.ones(3)
    tagged.source = "a"  # type: ignore[attr-defined]
    assert roundtrip(tagged).source == "a"


def test_requires_grad_is_kept_without_the_graph() -> None:
    weight = torch.ones(LARGE, requires_grad=True)
    back = roundtrip([weight, weight * 2, weight.detach()])
    assert [tensor.requires_grad for tensor in back] == [True, True, False]
    assert back[1].is_leaf
    assert torch.equal(back[1], torch.full((LARGE,), 2.0))


def test_local_classes_travel_by_value() -> None:
    @dataclass
    class Sample:
        tokens: torch.Tensor

    Pair = namedtuple("Pair", "left right")
    back = roundtrip([Sample(torch.ones(LARGE)), Pair(1, torch.zeros(2))])
    assert isinstance(back[0], Sample) and torch.equal(back[0].tokens, torch.ones(LARGE))
    assert type(back[1]) is Pair and back[1].left == 1
    assert roundtrip(lambda: 5)() == 5


def test_ordinary_batches_do_without_the_slow_pickler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudpickle, "Pickler", None)
    batch = {"images": torch.rand(8, 3, 40, 40), "keys": ["a", b"b"], "n": np.eye(3)}
    assert same(roundtrip(batch), batch)
    assert pack(torch.ones(LARGE)).size_bytes < LARGE * 4 + 1024


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match="lock"):
        pack({"images": torch.ones(2), "lock": threading.Lock()})


def test_each_part_is_let_go_of_once_it_is_written() -> None:
    array = np.ones(LARGE, np.uint8)
    alive = weakref.ref(array)
    packed = pack({"a": array, "b": bytes(2 * LARGE)})
    del array
    assert alive() is not None
    packed.write(np.empty(packed.slot_bytes, np.uint8))
    assert alive() is None
