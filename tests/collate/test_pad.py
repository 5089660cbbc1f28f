from __future__ import annotations

import dataclasses
import pickle
from array import array
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import asyncloader as al
from asyncloader.collate.pad import Pad

lengths_lists = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def samples_of(lengths: list[int], *sequences: str) -> list[dict[str, Any]]:
    """Tokens count up from 1 through the whole batch, so each has one rightful place."""
    sequences = sequences or ("tokens", "frames")
    starts = np.cumsum([1, *lengths]).tolist()
    samples = []
    for i, length in enumerate(lengths):
        known = {
            "tokens": np.arange(starts[i], starts[i + 1], dtype=np.int32),
            "frames": torch.full((length, 2), float(i)),
        }
        samples.append({"__key__": f"k{i}", "label": i} | {name: known[name] for name in sequences})
    return samples


@given(lengths_lists)
def test_a_batch_is_what_pad_sequence_makes(lengths: list[int]) -> None:
    samples = samples_of(lengths)
    batch = Pad({"tokens": -100, "frames": 0})(samples)
    tokens = pad_sequence([torch.from_numpy(s["tokens"]) for s in samples], True, -100.0)
    frames = pad_sequence([s["frames"] for s in samples], True)
    assert torch.equal(batch["tokens"], tokens)
    assert batch["tokens"].dtype == torch.int32
    assert torch.equal(batch["frames"], frames)
    assert batch["tokens_lengths"].tolist() == batch["frames_lengths"].tolist() == lengths
    assert batch["tokens_lengths"].dtype == torch.int64
    assert batch["label"].tolist() == list(range(len(lengths)))
    assert batch["__key__"] == [s["__key__"] for s in samples]


@given(lengths_lists, st.sampled_from(["left", "right"]))
def test_the_mask_selects_every_value_once(lengths: list[int], side: Any) -> None:
    batch = Pad({"tokens": 0}, side=side, mask=True, multiple_of=4)(samples_of(lengths, "tokens"))
    mask = batch["tokens_mask"]
    assert mask.dtype == torch.bool
    assert mask.shape == batch["tokens"].shape
    assert batch["tokens"][mask].tolist() == list(range(1, sum(lengths) + 1))
    assert mask.sum(1).tolist() == batch["tokens_lengths"].tolist()
    assert bool((batch["tokens"][~mask] == 0).all())


@given(lengths_lists)
def test_sorting_permutes_all_fields_alike_and_stably(lengths: list[int]) -> None:
    batch = Pad({"tokens": 0, "frames": 0}, sort_by="tokens")(samples_of(lengths))
    order = batch["label"].tolist()
    assert order == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    assert batch["__key__"] == [f"k{i}" for i in order]
    assert batch["tokens_lengths"].tolist() == [lengths[i] for i in order]
    assert batch["frames_lengths"].tolist() == [lengths[i] for i in order]
    plain = Pad({"tokens": 0, "frames": 0})(samples_of(lengths))
    assert torch.equal(batch["tokens"], plain["tokens"][order])
    assert torch.equal(batch["frames"], plain["frames"][order])


@given(lengths_lists, st.integers(1, 6), st.sampled_from(["left", "right"]))
def test_truncation_cuts_the_padded_side(lengths: list[int], limit: int, side: Any) -> None:
    samples = samples_of(lengths, "tokens")
    pad = Pad({"tokens": 0}, side=side, max_length=limit, overflow="truncate", mask=True)
    batch = pad(samples)
    for i, sample in enumerate(samples):
        kept = sample["tokens"][:limit] if side == "right" else sample["tokens"][-limit:]
        assert batch["tokens"][i][batch["tokens_mask"][i]].tolist() == kept.tolist()
    assert batch["tokens_lengths"].tolist() == [min(length, limit) for length in lengths]


def test_sorting_goes_by_the_lengths_after_truncation() -> None:
    pad = Pad({"tokens": 0}, max_length=3, overflow="truncate", sort_by="tokens")
    assert pad(samples_of([2, 4, 9], "tokens"))["label"].tolist() == [1, 2, 0]


def test_a_sorted_batch_can_be_packed() -> None:
    batch = Pad({"frames": 0}, sort_by="frames")(samples_of([2, 5, 3], "frames"))
    packed = pack_padded_sequence(batch["frames"], batch["frames_lengths"], batch_first=True)
    assert packed.batch_sizes.tolist() == [3, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1, 2], (3,)], torch.int64),
        ([[1.5], [2.5, 3.5]], torch.float64),
        ([[True], [False, True]], torch.bool),
        ([b"ab", b""], torch.uint8),
        ([bytearray(b"ab"), b"c"], torch.uint8),
        ([memoryview(b"ab"), b"c"], torch.uint8),
        ([array("h", [1, 2]), array("h", [3])], torch.int16),
        ([np.arange(2, dtype=np.uint16), np.arange(1, dtype=np.uint16)], torch.uint16),
        ([torch.ones(2, dtype=torch.float16), torch.ones(1, dtype=torch.float16)], torch.float16),
        ([torch.ones(2, dtype=torch.int64), np.ones(1, np.int64)], torch.int64),
        ([[[1, 2]], [[3, 4], [5, 6]]], torch.int64),
        ([[], [1.5]], torch.float64),
        ([[], [[1, 2]]], torch.int64),
        ([[], ()], torch.int64),
    ],
)
def test_each_kind_of_sequence_is_padded_in_its_own_dtype(values: list[Any], dtype: torch.dtype) -> None:
    batch = Pad({"x": 0})([{"x": value} for value in values])
    assert batch["x"].dtype == dtype
    for row, value in zip(batch["x"], values, strict=True):
        expected = list(value) if not isinstance(value, torch.Tensor | np.ndarray) else value.tolist()
        assert row[: len(value)].tolist() == [list(v) if isinstance(v, tuple) else v for v in expected]


def test_all_empty_sequences_give_width_zero_whatever_the_multiple() -> None:
    batch = Pad({"tokens": 0, "frames": 0}, multiple_of=8, mask=True)(samples_of([0, 0]))
    assert batch["tokens"].shape == (2, 0)
    assert batch["tokens_mask"].shape == (2, 0)
    assert batch["frames"].shape == (2, 0, 2)


def test_a_multiple_that_equals_the_limit_gives_every_batch_one_width() -> None:
    pad = Pad({"tokens": 0}, multiple_of=16, max_length=16)
    assert {pad(samples_of(lengths, "tokens"))["tokens"].shape[1] for lengths in ([1], [9, 3], [16])} == {16}


def test_each_field_can_have_its_own_options() -> None:
    pad = Pad({"tokens": {"value": 7, "side": "left", "multiple_of": 4, "dtype": torch.int64}, "frames": 0})
    batch = pad(samples_of([3, 1]))
    assert batch["tokens"].tolist() == [[7, 1, 2, 3], [7, 7, 7, 4]]
    assert batch["tokens"].dtype == torch.int64
    assert batch["frames"].shape == (2, 3, 2)


@pytest.mark.parametrize("dtype", ["int16", np.int16, np.dtype(">i2"), torch.int16])
def test_a_dtype_can_be_numpys_or_torchs(dtype: Any) -> None:
    batch = Pad({"x": {"value": 0, "dtype": dtype}})([{"x": [1, 2]}, {"x": np.array([3.0])}])
    assert batch["x"].dtype == torch.int16
    assert batch["x"].tolist() == [[1, 2], [3, 0]]


def test_a_conversion_may_round_floats_to_shorter_floats() -> None:
    batch = Pad({"x": {"value": 0, "dtype": "float32"}})([{"x": [0.1]}, {"x": np.array([np.inf, 1])}])
    assert batch["x"].dtype == torch.float32
    assert batch["x"][0, 0] == torch.tensor(0.1)


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        ([1, 300], "uint8", "value 300 does not fit dtype=uint8"),
        (np.array([200], np.uint8), "int8", "value 200 does not fit dtype=int8"),
        ([-1], "uint64", "value -1 does not fit"),
        ([0.5], "int64", "value 0.5 does not fit"),
        ([float("nan")], "int32", "value nan does not fit"),
        ([2**53 + 1], "float64", "value 9007199254740993 does not fit"),
        ([2], "bool", "value 2 does not fit"),
        ([1e300], "float32", "value 1e\\+300 does not fit"),
        ([1j], "float32", "complex128 cannot be converted"),
    ],
)
def test_a_conversion_that_would_change_a_value_is_refused(value: Any, dtype: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"field 'x', entry 1 .*{words}"):
        Pad({"x": {"value": 0, "dtype": dtype}})([{"x": [1]}, {"__key__": "b", "x": value}])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(2, np.int32), "expected dtype int64 as at entry 0, found int32; .*dtype"),
        ([0.5], "expected dtype int64 as at entry 0, found float64"),
        (np.zeros((2, 1), np.int64), r"expected trailing dimensions \[\] as at entry 0, found \[1\]"),
        (np.zeros((1, 3), np.int64), r"found \[3\]; .* \(1, T\) for a sequence \(T,\): squeeze it"),
        (np.zeros((0, 3), np.int64), r"expected trailing dimensions \[\] as at entry 0, found \[3\]"),
        (5, r"expected a sequence of numbers \(T, ...\), found int"),
        (None, "found NoneType"),
        ("text", "found str"),
        ({"a": 1}, "found dict"),
        (["a"], "found dtype <U1"),
        ([None], "found dtype object"),
        (np.zeros(1, "datetime64[s]"), "found dtype datetime64"),
        (np.zeros(1, np.longdouble), "found dtype"),
        ([[1], [2, 3]], "found list that NumPy cannot read: .*inhomogeneous"),
        (torch.zeros(2, requires_grad=True), "found Tensor that NumPy cannot read: .*requires grad"),
        (torch.zeros(2, dtype=torch.bfloat16), "found Tensor that NumPy cannot read: .*BFloat16"),
    ],
)
def test_a_value_unlike_the_first_names_field_entry_and_key(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^field 'x', entry 1 \(__key__ 'b'\): .*{words}"):
        Pad({"x": 0})([{"__key__": "a", "x": [1]}, {"__key__": "b", "x": value}])


def test_a_missing_field_names_entry_and_key() -> None:
    with pytest.raises(ValueError, match=r"^field 'x', entry 1 \(__key__ 'b'\): expected the field, found"):
        Pad({"x": 0})([{"x": [1]}, {"__key__": "b"}])
    with pytest.raises(ValueError, match=r"^field 'x', entry 0: expected the field, found only"):
        Pad({"x": 0})([{"y": 1}])


def test_a_sequence_over_the_limit_is_refused() -> None:
    words = r"^field 'tokens', entry 1 \(__key__ 'k1'\): expected at most max_length=4, found length 5; .*cut"
    with pytest.raises(ValueError, match=words):
        Pad({"tokens": 0}, max_length=4)(samples_of([4, 5], "tokens"))


def test_a_padding_value_that_does_not_fit_the_data_is_refused() -> None:
    words = (
        "field 'x': padding value -100 does not fit dtype uint8; give the field a dtype that holds it, as "
    )
    with pytest.raises(ValueError, match=f'^{words}with {{"value": -100, "dtype": "int64"}}$'):
        Pad({"x": -100})([{"x": b"ab"}])
    with pytest.raises(ValueError, match=r'with {"value": 0.5, "dtype": "float64"}$'):
        Pad({"x": 0.5})([{"x": [1]}])


@pytest.mark.parametrize("empty", [[], np.array([]), torch.tensor([]), np.zeros(0, np.int8)], ids=repr)
@pytest.mark.parametrize(
    "full", [np.array([1, 2]), torch.tensor([1, 2], dtype=torch.int32), np.ones((2, 3), np.uint8)], ids=repr
)
@pytest.mark.parametrize("first", [True, False])
def test_an_empty_sequence_takes_the_dtype_and_trailing_dimensions_of_the_others(
    empty: Any, full: Any, first: bool
) -> None:
    batch = Pad({"x": 0})([{"x": empty}, {"x": full}] if first else [{"x": full}, {"x": empty}])
    whole = torch.as_tensor(full)
    assert (batch["x"].dtype, batch["x"].shape) == (whole.dtype, (2, *whole.shape))
    assert torch.equal(batch["x"][int(first)], whole)
    assert batch["x_lengths"].tolist() == ([0, 2] if first else [2, 0])


def test_an_empty_sequence_of_vectors_is_one_in_columns_too() -> None:
    samples = al.from_iterable([{"x": [[1, 2], [3, 4]]}, {"x": []}])
    for dataset in (samples, samples.map_batches(dict, batch_size=2)):
        (batch,) = al.DataLoader(dataset, batch_size=2, collate_fn=Pad({"x": 0}))
        assert batch["x"].tolist() == [[[1, 2], [3, 4]], [[0, 0], [0, 0]]]


def test_empty_sequences_alone_have_the_dtype_of_the_first_that_has_one() -> None:
    arrays: list[Any] = [[], np.zeros(0, np.float32), np.zeros(0)]
    assert Pad({"x": 0})([{"x": value} for value in arrays])["x"].dtype == torch.float32


def test_a_sample_that_is_no_mapping_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="samples that are mappings, found tuple at entry 1"):
        Pad({"x": 0})([{"x": [1]}, ([1], 2)])  # type: ignore[list-item]


def test_any_mapping_is_a_sample() -> None:
    assert Pad({"x": 0})([UserDict(x=[1], y=2), {"x": [1, 2], "y": 3}])["y"].tolist() == [2, 3]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="found an empty batch"):
        Pad({"x": 0})([])


def test_a_sample_field_with_a_generated_name_is_refused() -> None:
    sample = {"x": [1], "x_mask": 1}
    assert set(Pad({"x": 0})([sample])) == {"x", "x_lengths", "x_mask"}
    with pytest.raises(ValueError, match="adds 'x_mask' to the batch, but the samples have a field"):
        Pad({"x": 0}, mask=True)([sample])
    with pytest.raises(ValueError, match="adds 'x_lengths' to the batch, but fields have a field"):
        Pad({"x": 0, "x_lengths": 0})


def test_other_fields_that_do_not_stack_are_named() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor") as caught:
        Pad({"x": 0})([{"x": [1], "y": torch.zeros(2)}, {"x": [1], "y": torch.zeros(3)}])
    assert caught.value.__notes__[0].startswith("field 'y': shapes [2] and [3] at entries 0 and 1; ")


def count(samples: list[Any]) -> dict[str, Any]:
    return {"seen": samples}


def test_a_given_collate_fn_gets_the_other_fields() -> None:
    batch = Pad({"x": 0}, sort_by="x", collate_fn=count)([{"x": [1], "y": "a"}, {"x": [1, 2], "y": "b"}])
    assert batch["seen"] == [{"y": "b"}, {"y": "a"}]
    assert batch["x"].tolist() == [[1, 2], [1, 0]]


def test_a_collate_fn_that_returns_no_mapping_or_a_generated_name_is_refused() -> None:
    samples = [{"x": [1], "y": 2}]
    with pytest.raises(TypeError, match="expected a mapping from Pad's collate_fn, found list"):
        Pad({"x": 0}, collate_fn=list)(samples)
    with pytest.raises(ValueError, match="adds 'x_lengths' to the batch, but the collated others have"):
        Pad({"x": 0}, collate_fn=lambda others: {"x_lengths": 1})(samples)


def test_the_samples_are_left_alone() -> None:
    samples = samples_of([2, 3], "tokens")
    kept = [dict(sample) for sample in samples]
    batch = Pad({"tokens": 0}, sort_by="tokens")(samples)
    batch["tokens"][:] = 99
    assert [list(sample) for sample in samples] == [list(sample) for sample in kept]
    assert samples[1]["tokens"].tolist() == [3, 4, 5]


def test_a_pad_is_frozen_picklable_and_comparable() -> None:
    pad = Pad({"tokens": 0, "frames": {"value": 1, "dtype": "float32"}}, mask=True, sort_by="tokens")
    copy = pickle.loads(pickle.dumps(pad))
    assert copy == pad
    one, other = pad(samples_of([1, 2])), copy(samples_of([1, 2]))
    assert all(torch.equal(one[key], other[key]) for key in one if key != "__key__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        pad.mask = False  # type: ignore[misc]
    assert dataclasses.replace(pad, mask=False).mask is False


def test_changing_the_mapping_afterwards_does_not_change_the_pad() -> None:
    fields: dict[str, Any] = {"tokens": 0}
    pad = Pad(fields)
    fields["frames"] = 0
    assert pad == Pad({"tokens": 0})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": {}}, "fields should be a mapping"),
        ({"fields": ["x"]}, "fields should be a mapping"),
        ({"fields": {"x": "0"}}, "padding value should be a number, but got value='0'"),
        ({"fields": {"x": None}}, "padding value should be a number"),
        ({"side": "middle"}, "side should be 'left' or 'right', but got side='middle'"),
        ({"overflow": "drop"}, "overflow should be 'raise' or 'truncate'"),
        ({"multiple_of": 0}, "multiple_of should be a positive integer value, but got multiple_of=0"),
        ({"multiple_of": True}, "multiple_of should be a positive integer"),
        ({"max_length": 0}, "max_length should be a positive integer"),
        ({"max_length": 100, "multiple_of": 64}, "max_length should be a multiple of multiple_of=64"),
        ({"sort_by": "y"}, r"sort_by should be one of \['x'\], but got sort_by='y'"),
        (
            {"fields": {"x": {"max_length": 7}}, "multiple_of": 2},
            "max_length should be a multiple of multiple_of=2",
        ),
    ],
)
def test_options_out_of_range_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pad(**{"fields": {"x": 0}, **options})


def test_a_fields_own_options_go_before_those_of_all_and_unknown_ones_are_refused() -> None:
    batch = Pad({"a": 1, "b": {"value": 2, "side": "right"}}, side="left", multiple_of=4)(
        [{"a": [7], "b": [7]}]
    )
    assert batch["a"].tolist() == [[1, 1, 1, 7]] and batch["b"].tolist() == [[7, 2, 2, 2]]
    with pytest.raises(
        TypeError, match=r"options of the field 'x' should be among .*'max_length'.* got \['width'\]"
    ):
        Pad({"x": {"width": 3}})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"value": -100, "dtype": "uint8"}, "padding value -100 does not fit dtype uint8"),
        ({"dtype": torch.bfloat16}, "dtype should be a number type that NumPy and torch share"),
        ({"dtype": "U3"}, "dtype should be a number type"),
        ({"dtype": "nonsense"}, "dtype should be a number type"),
    ],
)
def test_a_dtype_that_cannot_work_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pad({"x": options})


@pytest.mark.parametrize(
    ("tokens", "found"), [([1, None], r"dtype object \(a null at place 1\)"), (None, "NoneType")]
)
def test_a_null_is_refused_with_what_to_do(tokens: Any, found: str) -> None:
    with pytest.raises(
        ValueError, match=rf"field 'tokens', entry 1: .* found {found}; a tensor cannot"
    ) as caught:
        al.Pad({"tokens": 0})([{"tokens": [3]}, {"tokens": tokens}])
    assert "replace it in .map, leave such samples out by .filter" in str(caught.value)
