from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Iterator
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image

from asyncloader.collate.default import default_collate, default_convert
from asyncloader.collate.pad import Pad, PadLongest

Point = namedtuple("Point", ["x", "y"])

#: The advice about a value whose type has no place in a tensor.
CONVERT = "; make numbers or text of it in .map, or pass a collate_fn"


class Colour(IntEnum):
    RED = 1


def same(one: Any, other: Any) -> bool:
    """Equal in structure, types, dtypes and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "keys"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | UserList):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


BATCHES: dict[str, list[Any]] = {
    "ints": [1, 2],
    "floats": [0.5, 1.0],
    "bools": [True, False],
    "int_then_float": [1, 2.5],
    "enum": [Colour.RED, Colour.RED],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "bytearrays": [bytearray(b"ab"), bytearray(b"cd")],
    "tensors": [torch.arange(3), torch.arange(3)],
    "float16_tensors": [torch.zeros(2, 2, dtype=torch.float16)] * 2,
    "arrays": [np.arange(3, dtype=np.int16), np.arange(3, dtype=np.int16)],
    "zero_dim_arrays": [np.array(1.5), np.array(2.5)],
    "numpy_scalars": [np.float32(1), np.float32(2)],
    "numpy_bools": [np.bool_(True), np.bool_(False)],
    "lists": [[1, 2.0], [3, 4.0]],
    "tuples": [(1, "a"), (2, "b")],
    "ranges": [range(2), range(2)],
    "namedtuples": [Point(1, np.zeros(2)), Point(2, np.ones(2))],
    "user_lists": [UserList([1, 2]), UserList([3, 4])],
    "dicts": [{"x": 1, "__key__": "a", "__url__": "u"}, {"x": 2, "__key__": "b", "__url__": "u"}],
    "extra_key_later": [{"x": 1}, {"x": 2, "y": 3}],
    "ordered": [OrderedDict(b=1, a=2), OrderedDict(a=4, b=3)],
    "user_dicts": [UserDict(x=1), UserDict(x=2)],
    "proxies": [MappingProxyType({"x": 1}), MappingProxyType({"x": 2})],
    "defaultdicts": [defaultdict(int, x=1), defaultdict(int, x=2)],
    "nested": [
        {"a": {"b": [torch.ones(2), (1, "s")]}, "p": Point(0.5, {"z": np.int8(3)})},
        {"a": {"b": [torch.zeros(2), (2, "t")]}, "p": Point(1.5, {"z": np.int8(4)})},
    ],
    "empty_dicts": [{}, {}],
    "empty_lists": [[], []],
}

BAD_BATCHES: dict[str, list[Any]] = {
    "nothing": [],
    "none": [None, None],
    "sets": [{1}, {2}],
    "decimals": [{"x": Decimal(1)}, {"x": Decimal(2)}],
    "complex": [1j, 2j],
    "string_arrays": [np.array(["a"]), np.array(["b"])],
    "unequal_tensors": [{"x": torch.zeros(2)}, {"x": torch.zeros(3)}],
    "unequal_arrays": [np.zeros(2), np.zeros(3)],
    "unequal_lists": [{"x": [1]}, {"x": [1, 2]}],
    "missing_field": [{"x": 1}, {"y": 1}],
    "not_all_mappings": [{"x": 1}, 3],
    "overflow": [2**63, 1],
    "sparse": [torch.zeros(2).to_sparse()] * 2,
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_default_collate_makes_what_torch_makes(batch: list[Any]) -> None:
    assert same(default_collate(batch), torch.utils.data.default_collate(batch))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_default_convert_makes_what_torch_makes(batch: list[Any]) -> None:
    torchs: Any = torch.utils.data.default_convert
    for sample in [*batch, None, {1}, np.array(["a"]), np.str_("a")]:
        assert same(default_convert(sample), torchs(sample))


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_default_collate_fails_with_the_type_and_words_of_torch(batch: list[Any]) -> None:
    with pytest.raises(Exception) as torchs:
        torch.utils.data.default_collate(batch)
    with pytest.raises(Exception) as ours:
        default_collate(batch)
    assert type(ours.value) is type(torchs.value)
    assert str(ours.value) == str(torchs.value)


def note_of(batch: list[Any]) -> str:
    with pytest.raises(Exception) as caught:
        default_collate(batch)
    (note,) = caught.value.__notes__
    return str(note)


def test_unequal_shapes_name_the_field_the_entries_and_the_remedy() -> None:
    batch = [{"label": 1, "tokens": torch.zeros(n)} for n in (2, 2, 3)]
    assert note_of(batch) == (
        "field 'tokens': shapes [2] and [3] at entries 0 and 2; collate_fn=al.Pad({\"tokens\": 0}) pads it"
    )


def test_lists_of_unequal_length_get_the_same_advice() -> None:
    assert note_of([{"tokens": [1, 2]}, {"tokens": [1]}]) == (
        "field 'tokens': lengths 2 and 1 at entries 0 and 1; collate_fn=al.Pad({\"tokens\": 0}) pads it"
    )


def test_the_advice_names_all_fields_that_it_takes_to_follow_it_once() -> None:
    samples = [{"tokens": [0] * n, "n": n, "labels": np.zeros(n), "same": [1, 2]} for n in (2, 3)]
    advice = 'collate_fn=al.Pad({"tokens": 0, "labels": 0}) pads them'
    assert note_of(samples).endswith(f"; {advice}")
    for taken in (Pad({"tokens": 0}), Pad({"labels": 0}), PadLongest("tokens")):
        with pytest.raises(RuntimeError) as caught:
            taken(samples)
        assert caught.value.__notes__[0].endswith(f"; {advice}")
    # The one that is padded already stays so, whether or not this batch would show that it has to be.
    with pytest.raises(RuntimeError) as caught:
        Pad({"same": 0, "labels": 0})(samples)
    assert caught.value.__notes__[0].endswith(
        '; collate_fn=al.Pad({"tokens": 0, "labels": 0, "same": 0}) pads them'
    )


def test_no_padding_is_advised_for_samples_that_are_no_mappings() -> None:
    assert note_of([Point(1, [1]), Point(1, [1, 2])]) == "field 'y': lengths 1 and 2 at entries 0 and 1"


def test_no_padding_is_advised_where_it_cannot_help() -> None:
    assert note_of([{"image": np.zeros((3, 8, 8))}, {"image": np.zeros((3, 8, 9))}]) == (
        "field 'image': shapes [3, 8, 8] and [3, 8, 9] at entries 0 and 1; make the shapes equal in .map"
    )
    assert "al.Pad" not in note_of([{"words": ["a", "b"]}, {"words": ["a"]}])
    assert "al.Pad" not in note_of([{"deep": {"tokens": [1]}}, {"deep": {"tokens": [1, 2]}}])


def test_entries_are_named_by_their_key() -> None:
    batch = [{"__key__": key, "x": np.zeros(n)} for key, n in (("a/1", 2), ("a/2", 3))]
    assert "entries 0 (__key__ 'a/1') and 1 (__key__ 'a/2')" in note_of(batch)


def test_a_nested_field_is_named_by_its_whole_path() -> None:
    batch = [{"meta": {"at": (1, Point(0, None))}}, {"meta": {"at": (1, Point(0, 3))}}]
    named, _, advice = note_of(batch).partition("; ")
    assert named == "field 'meta'['at'][1]['y']: types NoneType and int at entries 0 and 1"
    assert advice.startswith("a tensor cannot hold None")


def test_a_missing_field_names_the_entry() -> None:
    batch = [{"__key__": "a", "x": {"y": 1}}, {"__key__": "b", "x": {}}]
    assert note_of(batch) == "field 'x'['y'] is missing at entry 1 (__key__ 'b'); add it in .map"


def test_a_missing_string_field_is_not_mistaken_for_a_later_fault() -> None:
    assert note_of([{"s": "a", "x": None}, {"x": None}]) == "field 's' is missing at entry 1; add it in .map"


def test_an_unsupported_type_is_named_with_its_field() -> None:
    assert note_of([{"when": object()}] * 2) == f"field 'when': values of type object{CONVERT}"
    strings = [{"s": np.array(["a"])}, {"s": np.array(["b"])}]
    assert note_of(strings) == f"field 's': values of type ndarray of dtype <U1{CONVERT}"


async def _answer() -> int:
    return 1


def test_coroutines_and_generators_say_which_slip_made_them() -> None:
    forgotten = _answer()
    assert note_of([{"x": forgotten}]).endswith(
        "; it was never awaited: pass the async def function itself to .map, or await it in one"
    )
    forgotten.close()
    many = (number for number in range(2))
    assert note_of([many]).endswith(
        "; a function with yield makes many values: .map takes one that returns a sample"
    )


def test_samples_that_are_no_mappings_are_named_as_such() -> None:
    assert note_of([np.zeros(2), np.zeros(3)]) == (
        "the samples themselves: shapes [2] and [3] at entries 0 and 1; make the shapes equal in .map"
    )
    assert note_of([(1, 2), (1, "b")]) == "field 1: types int and str at entries 0 and 1"


def test_default_convert_names_the_field_that_torch_cannot_convert() -> None:
    sample = {"x": 1, "times": [np.zeros(2), np.zeros(2, "datetime64[s]")]}
    with pytest.raises(TypeError) as caught:
        default_convert(sample)
    assert caught.value.__notes__ == [
        f"field 'times'[1]: values of type ndarray of dtype datetime64[s]{CONVERT}"
    ]


@pytest.fixture
def always_warn() -> Iterator[None]:
    """torch warns of some things once in a process; and a warning is an error here."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_default_convert_copies_what_cannot_be_written_and_shares_what_can(always_warn: None) -> None:
    lent = np.arange(4)
    lent.flags.writeable = False
    own = np.arange(4)
    sample = {"a": lent, "b": [lent, (lent, own)], "c": Point(lent, 1), "d": own, "e": lent[:0]}
    found = default_convert(sample)
    for tensor in (found["a"], found["b"][0], found["b"][1][0], found["c"].x):
        tensor += 1
        assert tensor.tolist() == [1, 2, 3, 4]
    found["d"] += 1
    assert lent.tolist() == [0, 1, 2, 3] and own.tolist() == [1, 2, 3, 4]
    assert found["b"][1][1].tolist() == [1, 2, 3, 4] and len(found["e"]) == 0


def test_default_collate_stacks_what_cannot_be_written_without_a_warning(always_warn: None) -> None:
    lent = np.arange(3)
    lent.flags.writeable = False
    found = default_collate([{"a": lent, "b": [lent]}] * 2)
    assert found["a"].tolist() == found["b"][0].tolist() == [[0, 1, 2]] * 2


def test_images_and_lists_of_unequal_lengths_say_what_to_do() -> None:
    image = Image.new("RGB", (2, 2))
    assert note_of([{"image": image}] * 2) == (
        "field 'image': values of type Image; make an array of the image in .map, as with np.asarray(image)"
    )
    note = note_of([{"meta": {"tags": ["a"]}}, {"meta": {"tags": []}}])
    assert note == (
        "field 'meta'['tags']: lengths 1 and 0 at entries 0 and 1; leave it out by .select_columns or in "
        ".map, or make it one text, as by json.dumps"
    )


def test_types_registered_with_torch_are_collated(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def count(batch: list[Any], *, collate_fn_map: Any) -> int:
        if None in batch[0]:
            raise LookupError("no")
        return len(batch)

    monkeypatch.setitem(default_collate_fn_map, frozenset, count)
    assert default_collate([{"s": frozenset({1})}, {"s": frozenset()}]) == {"s": 2}
    with pytest.raises(LookupError, match=r"^no") as caught:
        default_collate([{"s": frozenset({None})}])
    assert caught.value.__notes__ == [f"field 's': values of type frozenset{CONVERT}"]


def test_a_sample_that_fails_when_looked_at_again_keeps_its_own_error() -> None:
    class Moody(UserDict[str, Any]):
        looked = 0

        def __getitem__(self, key: str) -> Any:
            self.looked += 1
            raise OSError("gone" if self.looked == 1 else "still gone")

        def get(self, key: str, default: Any = None) -> Any:
            raise AssertionError("not to be seen")

    with pytest.raises(OSError, match=r"^gone$"):
        default_collate([Moody(x=1)])


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, asyncloader.collate, asyncloader.collate.fault;"
        "assert 'Pad' in dir(asyncloader);"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("value", [None, [1, None]])
def test_a_null_among_arrays_is_torchs_error_with_field_entry_and_advice(value: Any) -> None:
    frozen = np.arange(2)
    frozen.flags.writeable = False  # as those over the bytes of a shard are
    with pytest.raises((RuntimeError, TypeError), match="NoneType") as caught:
        default_collate([{"tokens": frozen}, {"tokens": value}])
    (note,) = caught.value.__notes__
    assert "field 'tokens'" in note and "at entries 0 and 1" in note and "fill_null" in note


def test_a_null_is_named_with_what_to_do() -> None:
    with pytest.raises(RuntimeError) as caught:
        default_collate([{"n": 1}, {"n": None}])
    assert "types int and NoneType at entries 0 and 1; a tensor cannot hold None" in caught.value.__notes__[0]


def test_memory_that_cannot_be_written_is_not_warned_of_before_the_error() -> None:
    # Warnings are errors here.
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([{"x": np.frombuffer(b"ab", np.uint8)}, {"x": np.frombuffer(b"abc", np.uint8)}])
    promoted = default_collate([np.frombuffer(b"ab", np.uint8), np.array([1.5, 2.5])])
    assert promoted.tolist() == [[97.0, 98.0], [1.5, 2.5]]
