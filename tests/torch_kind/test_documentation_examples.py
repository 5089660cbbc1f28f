"""The code examples of PyTorch's ``torch.utils.data`` documentation, with torch's loader and with ours.

Each is a function of the module that ``DataLoader`` and its like come from. What torch has and we have
not (samplers, dataset classes) is torch's in both: an import of it stays as it is.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map

import asyncloader as al

from .pairs import plain

# Of the documentation's own twelve workers, and of data that it divides by nobody on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:(MyIterableDataset|ChainDataset) is read by several workers:UserWarning"
    ),
]

EXAMPLES: list[Callable[[Any], Any]] = []


def example(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    EXAMPLES.append(function)
    return function


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: run.__name__)
def test_an_example_gives_the_same_with_the_import_changed(run: Callable[[Any], Any]) -> None:
    outputs = []
    for module in (torch.utils.data, al):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true but no acc")
            outputs.append(plain(run(module)))
    assert outputs[0] == outputs[1]
    assert outputs[0]


# --- IterableDataset ---


@example
def splitting_in_iter(data: Any) -> Any:
    class MyIterableDataset(IterableDataset[int]):
        def __init__(self, start: int, end: int) -> None:
            super(MyIterableDataset).__init__()
            assert end > start, "this example only works with end >= start"
            self.start = start
            self.end = end

        def __iter__(self) -> Iterator[int]:
            worker_info = data.get_worker_info()
            if worker_info is None:  # single-process data loading, return the full iterator
                iter_start = self.start
                iter_end = self.end
            else:  # in a worker process
                # split workload
                per_worker = math.ceil((self.end - self.start) / float(worker_info.num_workers))
                worker_id = worker_info.id
                iter_start = self.start + worker_id * per_worker
                iter_end = min(iter_start + per_worker, self.end)
            return iter(range(iter_start, iter_end))

    ds = MyIterableDataset(start=3, end=7)
    printed = [list(data.DataLoader(ds, num_workers=workers)) for workers in (0, 2, 12)]
    assert [int(batch) for batch in printed[0]] == [3, 4, 5, 6]
    assert [int(batch) for batch in printed[1]] == [3, 5, 4, 6]
    return printed


@example
def splitting_in_worker_init_fn(data: Any) -> Any:
    class MyIterableDataset(IterableDataset[int]):
        def __init__(self, start: int, end: int) -> None:
            super(MyIterableDataset).__init__()
            assert end > start, "this example only works with end >= start"
            self.start = start
            self.end = end

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.start, self.end))

    ds = MyIterableDataset(start=3, end=7)
    printed = [list(data.DataLoader(ds, num_workers=0)), list(data.DataLoader(ds, num_workers=2))]
    assert [int(batch) for batch in printed[1]] == [3, 3, 4, 4, 5, 5, 6, 6]

    def worker_init_fn(worker_id: int) -> None:
        worker_info = data.get_worker_info()
        dataset = worker_info.dataset  # the dataset copy in this worker process
        overall_start = dataset.start
        overall_end = dataset.end
        # configure the dataset to only process the split workload
        per_worker = math.ceil((overall_end - overall_start) / float(worker_info.num_workers))
        worker_id = worker_info.id
        dataset.start = overall_start + worker_id * per_worker
        dataset.end = min(dataset.start + per_worker, overall_end)

    for workers in (2, 12):
        printed.append(list(data.DataLoader(ds, num_workers=workers, worker_init_fn=worker_init_fn)))
    assert [int(batch) for batch in printed[2]] == [3, 5, 4, 6]
    return printed


# --- the page's equivalences: what automatic batching and its absence mean ---


@example
def automatic_batching_and_its_absence(data: Any) -> Any:
    dataset = [{"x": np.array([index]), "y": index} for index in range(5)]
    batch_sampler = BatchSampler(SequentialSampler(dataset), 2, drop_last=False)
    collate_fn = data.default_collate
    by_hand = [collate_fn([dataset[i] for i in indices]) for indices in batch_sampler]
    loaded = list(data.DataLoader(dataset, batch_sampler=batch_sampler))
    assert plain(loaded) == plain(by_hand)
    single = list(data.DataLoader(dataset, batch_size=None))
    assert plain(single) == plain([data.default_convert(item) for item in dataset])
    # Already batched data: the sampler gives lists of indices to a dataset that reads them at once.
    table = torch.arange(12).reshape(6, 2)
    sampler = BatchSampler(RandomSampler(table), batch_size=4, drop_last=False)
    return loaded, single, list(data.DataLoader(table, batch_size=None, sampler=sampler))


# --- memory pinning ---


class SimpleCustomBatch:
    def __init__(self, data: Any) -> None:
        transposed_data = list(zip(*data, strict=True))
        self.inp = torch.stack(transposed_data[0], 0)
        self.tgt = torch.stack(transposed_data[1], 0)
        self.pinned = 0

    # custom memory pinning method on custom type
    def pin_memory(self) -> SimpleCustomBatch:
        self.inp = self.inp.pin_memory()
        self.tgt = self.tgt.pin_memory()
        self.pinned += 1
        return self


def collate_wrapper(batch: Any) -> SimpleCustomBatch:
    return SimpleCustomBatch(batch)


@example
def memory_pinning_of_a_custom_batch(data: Any) -> Any:
    inps = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
    tgts = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
    dataset = TensorDataset(inps, tgts)
    loader = data.DataLoader(dataset, batch_size=2, collate_fn=collate_wrapper, pin_memory=True)
    return [
        (sample.inp, sample.tgt, sample.pinned, sample.inp.is_pinned(), sample.tgt.is_pinned())
        for sample in loader
    ]


# --- collate_fn ---


@example
def sequences_of_various_lengths(data: Any) -> Any:
    features = 3
    dataset = [torch.full((length, features), float(length)) for length in (4, 1, 7, 2, 5)]

    def collate(samples: list[torch.Tensor]) -> Any:
        samples.sort(key=len, reverse=True)
        lengths = torch.tensor([len(sample) for sample in samples])
        return pad_sequence(samples, batch_first=True), lengths

    printed = []
    for workers in (0, 2):
        for padded, lengths in data.DataLoader(
            dataset, batch_size=3, collate_fn=collate, num_workers=workers
        ):
            assert padded.shape == (len(lengths), int(lengths.max()), features)
            packed = pack_padded_sequence(padded, lengths, batch_first=True)
            printed.append((padded, lengths, packed.data, packed.batch_sizes))
    return printed


Point = namedtuple("Point", ["x", "y"])


@example
def default_collate_examples(data: Any) -> Any:
    return [
        data.default_collate(batch)
        for batch in (
            [0, 1, 2, 3],
            ["a", "b", "c"],
            [{"A": 0, "B": 1}, {"A": 100, "B": 100}],
            [Point(0, 0), Point(1, 1)],
            [(0, 1), (2, 3)],
            [[0, 1], [2, 3]],
        )
    ]


@example
def default_convert_examples(data: Any) -> Any:
    return [
        data.default_convert(0),
        data.default_convert(np.array([0, 1])),
        data.default_convert(Point(0, 0)),
        data.default_convert(Point(np.array(0), np.array(0))),
        data.default_convert([np.array([0, 1]), np.array([2, 3])]),
    ]


class CustomType:
    def __init__(self, value: int) -> None:
        self.value = value


@example
def default_collate_extended_by_a_function_of_ones_own(data: Any) -> Any:
    def custom_collate(batch: Any) -> Any:
        elem = batch[0]
        if isinstance(elem, CustomType):  # Some custom condition
            return [element.value for element in batch]
        return data.default_collate(batch)  # Fall back to default_collate

    kinds = ([CustomType(index) for index in range(3)], [0, 1, 2])
    return [list(data.DataLoader(kind, 2, collate_fn=custom_collate)) for kind in kinds]


@example
def default_collate_extended_in_place(data: Any) -> Any:
    def collate_customtype_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.tensor([element.value for element in batch])

    default_collate_fn_map.update({CustomType: collate_customtype_fn})
    try:
        batch = [CustomType(index) for index in range(3)]
        loaded = [list(data.DataLoader(batch, 2, num_workers=workers)) for workers in (0, 1)]
        return data.default_collate(batch), loaded  # Handle `CustomType` automatically
    finally:
        del default_collate_fn_map[CustomType]


# --- samplers ---


@example
def samplers_by_sequence_length(data: Any) -> Any:
    class AccedingSequenceLengthSampler(Sampler[int]):
        def __init__(self, data: list[str]) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data)

        def __iter__(self) -> Iterator[int]:
            sizes = torch.tensor([len(x) for x in self.data])
            yield from torch.argsort(sizes).tolist()

    class AccedingSequenceLengthBatchSampler(Sampler[list[int]]):
        def __init__(self, data: list[str], batch_size: int) -> None:
            self.data = data
            self.batch_size = batch_size

        def __len__(self) -> int:
            return (len(self.data) + self.batch_size - 1) // self.batch_size

        def __iter__(self) -> Iterator[list[int]]:
            sizes = torch.tensor([len(x) for x in self.data])
            for batch in torch.chunk(torch.argsort(sizes), len(self)):
                yield batch.tolist()

    texts = ["four", "a", "three", "bb", "sixsix", "ccc"]
    one = data.DataLoader(texts, 2, sampler=AccedingSequenceLengthSampler(texts))
    many = data.DataLoader(texts, batch_sampler=AccedingSequenceLengthBatchSampler(texts, 4))
    return len(one), list(one), len(many), list(many)


@example
def weighted_random_sampler(data: Any) -> Any:
    drawn = [
        list(WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 5, replacement=True)),
        list(WeightedRandomSampler([0.9, 0.4, 0.05, 0.2, 0.3, 0.1], 5, replacement=False)),
    ]
    # A set of 80 of one label and 20 of another comes out half and half.
    labels = torch.tensor([0] * 800 + [1] * 200)
    weights = 1.0 / torch.bincount(labels).double()
    sampler = WeightedRandomSampler(weights[labels], len(labels))
    batches = list(data.DataLoader(TensorDataset(labels), 50, sampler=sampler))
    counts = Counter(label for (batch,) in batches for label in batch.tolist())
    assert abs(counts[1] - 500) < 80, "five standard deviations of 16"
    return drawn, batches


@example
def batch_sampler(data: Any) -> Any:
    return [
        list(data.DataLoader(range(10), batch_sampler=sampler))
        for sampler in (
            BatchSampler(SequentialSampler(range(10)), batch_size=3, drop_last=False),
            BatchSampler(SequentialSampler(range(10)), batch_size=3, drop_last=True),
        )
    ]


@example
def subset_random_sampler(data: Any) -> Any:
    indices = torch.randperm(10).tolist()
    train, valid = SubsetRandomSampler(indices[2:]), SubsetRandomSampler(indices[:2])
    batches = [list(data.DataLoader(range(10), 4, sampler=sampler)) for sampler in (train, valid)]
    assert sorted(int(n) for part in batches for batch in part for n in batch) == list(range(10))
    return batches


@example
def distributed_sampler(data: Any) -> Any:
    dataset, n_epochs, epochs = list(range(11)), 2, []
    for rank in range(2):
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=rank)
        loader = data.DataLoader(dataset, shuffle=(sampler is None), sampler=sampler)
        for epoch in range(n_epochs):
            sampler.set_epoch(epoch)
            epochs.append(list(loader))
    assert plain(epochs[0]) != plain(epochs[1])
    return epochs


# --- datasets ---


@example
def random_split_of_a_range(data: Any) -> Any:
    generator1 = torch.Generator().manual_seed(42)
    generator2 = torch.Generator().manual_seed(42)
    parts: list[Any] = [
        *random_split(range(10), [3, 7], generator=generator1),  # type: ignore[arg-type]
        *random_split(range(30), [0.3, 0.3, 0.4], generator=generator2),  # type: ignore[arg-type]
    ]
    assert [len(part) for part in parts] == [3, 7, 9, 9, 12]
    return [list(data.DataLoader(part, 4, shuffle=True)) for part in parts]


@example
def datasets_made_of_datasets(data: Any) -> Any:
    class MyIterableDataset(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    images: Any = TensorDataset(torch.arange(3))
    texts: Any = ["a", "b", "c"]
    tuple_stack: Any = StackDataset(images, texts)
    dict_stack: Any = StackDataset(image=images, text=texts)
    assert tuple_stack[0] == (images[0], texts[0])
    assert dict_stack[0] == {"image": images[0], "text": texts[0]}
    datasets = [
        images,
        tuple_stack,
        dict_stack,
        ConcatDataset([texts, ["d"]]),
        images + images,
        Subset(texts, [2, 0]),
        ChainDataset([MyIterableDataset(), MyIterableDataset()]),
        MyIterableDataset() + MyIterableDataset(),
    ]
    return [(len(loader), list(loader)) for loader in (data.DataLoader(one, 2) for one in datasets)]
