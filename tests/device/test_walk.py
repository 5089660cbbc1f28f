from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data._utils.pin_memory import pin_memory

from asyncloader.device.carriers import take_apart


def doubled(batch: Any) -> Any:
    leaves, build = take_apart(batch)
    return build([leaf * 2 if isinstance(leaf, torch.Tensor) else leaf.pin_memory() for leaf in leaves])


class Point(NamedTuple):
    x: Any
    y: Any


class Odd:
    """A type of the user's with a way of its own."""

    def pin_memory(self) -> str:
        return "pinned"


class OddList(list[Any]):
    def __init__(self, items: Any, *, label: str = "none") -> None:
        super().__init__(items)
        self.label = label


class Frozen(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Unbuildable(Frozen):
    def __init__(self) -> None:
        super().__init__({"a": torch.tensor(1)})


@dataclasses.dataclass
class Sample:
    x: Any
    label: str = "none"
    cached: Any = dataclasses.field(init=False, default=None)
    seed: dataclasses.InitVar[int] = 0

    def __post_init__(self, seed: int) -> None:
        self.built = getattr(self, "built", 0) + 1


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSample:
    x: Any
    y: Any = None


def test_tensor_is_its_own_batch() -> None:
    assert doubled(torch.tensor(3)).item() == 6


def test_pin_memory_method_of_any_type_decides() -> None:
    assert doubled([Odd(), {"a": Odd()}]) == ["pinned", {"a": "pinned"}]


@pytest.mark.parametrize("value", ["text", b"bytes", bytearray(b"x"), None, 1, 2.5, {1, 2}, object(), Sample])
def test_everything_else_is_passed_on_as_it_is(value: Any) -> None:
    assert doubled(value) is value
    assert doubled([value])[0] is value


def test_tuple_stays_tuple_and_list_stays_list() -> None:
    one = torch.tensor(1)
    result = doubled((one, [one], (one,)))
    assert result == (torch.tensor(2), [torch.tensor(2)], (torch.tensor(2),))
    assert [type(part) for part in result] == [torch.Tensor, list, tuple]


def test_namedtuple_keeps_its_type() -> None:
    result = doubled(Point(torch.tensor(1), "y"))
    assert type(result) is Point
    assert result == Point(torch.tensor(2), "y")


def test_range_becomes_a_list() -> None:
    assert doubled(range(3)) == [0, 1, 2]


def test_mapping_types_are_kept() -> None:
    one = torch.tensor(1)
    ordered = doubled(collections.OrderedDict(b=one, a=one))
    assert type(ordered) is collections.OrderedDict and list(ordered) == ["b", "a"]
    default = doubled(collections.defaultdict(list, a=one))
    assert type(default) is collections.defaultdict and default["missing"] == []
    assert type(doubled(Frozen({"a": one}))) is Frozen
    assert type(doubled(MappingProxyType({"a": one}))) is MappingProxyType


def test_mapping_that_cannot_be_built_becomes_a_dict() -> None:
    assert doubled(Unbuildable()) == {"a": torch.tensor(2)}


def test_copy_of_a_list_type_keeps_its_attributes() -> None:
    old = OddList([torch.tensor(1)], label="kept")
    new = doubled(old)
    assert (type(new), new.label, new[0].item(), old[0].item()) == (OddList, "kept", 2, 1)


def test_dataclass_is_copied_without_being_constructed_again() -> None:
    old = Sample(torch.tensor(1), "label", seed=7)
    old.cached = [torch.tensor(2)]
    new = doubled(old)
    assert (type(new), new.x.item(), new.label, new.cached[0].item()) == (Sample, 2, "label", 4)
    assert new.built == 1
    assert (old.x.item(), old.cached[0].item()) == (1, 2)


def test_frozen_dataclass_with_slots_is_copied() -> None:
    old = FrozenSample(torch.tensor(1), (torch.tensor(2),))
    new = doubled(old)
    assert (new.x.item(), new.y[0].item(), old.x.item()) == (2, 4, 1)


def test_old_batch_is_not_changed() -> None:
    old = {"a": [torch.tensor(1)], "b": (torch.tensor(2),)}
    doubled(old)
    assert old["a"][0].item() == 1 and old["b"][0].item() == 2


class Pinned:
    """Counts as a leaf for torch and for us, and needs no accelerator."""

    def __init__(self, number: int) -> None:
        self.number = number

    def pin_memory(self) -> tuple[str, int]:
        return ("pinned", self.number)


LEAVES = st.one_of(st.integers(), st.text(), st.binary(), st.none(), st.builds(Pinned, st.integers()))
BATCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(collections.deque),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(Frozen),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=12,
)


@given(BATCHES)
def test_structure_is_what_torch_makes_of_it(batch: Any) -> None:
    assert described(doubled(batch)) == described(pin_memory(batch))


def described(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return type(batch), {key: described(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple, collections.deque)):
        return type(batch), [described(value) for value in batch]
    return batch


def test_importing_the_room_does_not_import_torch() -> None:
    code = "import sys, asyncloader.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
