"""Every chunk that litdata writes, read sample for sample as its own reader reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import asyncloader as al

from .conftest import Chunks

# The names of write_chunks.py, which only the peers' Python imports.
SETS = ["scalars", "json_rows", "nested_rows", "rows_with_nulls", "rows_compressed", "numpy_flat", "numpy"]
SETS += [
    "tensor_flat",
    "tensor",
    "equal_shapes",
    "single",
    "single_bytes",
    "nested",
    "tuple",
    "json",
    "files",
]
SETS += ["jpeg", "image", "jpeg_array", "tifffile", "pil", "whole", "whole_3", "runs", "each"]
TOKENS = ["tokens_tensor", "tokens_numpy", "tokens_whole"]
BLOCK = 5
# One of each kind of chunks: for what does not depend on the values.
KINDS = ("nested_rows", "tensor_flat", "runs", "each", "whole", "tokens_numpy", "jpeg")

Place = Callable[[str, str], tuple[str, dict[str, Any]]]


def recipe_of(root: str, name: str, **options: Any) -> al.Dataset:
    if name in TOKENS:
        options["block_size"] = BLOCK
    return al.from_litdata(root, **options)


def same(ours: Any, theirs: Any) -> bool:
    """Whether a value is theirs: numbers may be NumPy's here, and lists of numbers in rows arrays."""
    if isinstance(ours, Image.Image):
        return bool((ours.mode, ours.size, ours.tobytes()) == theirs)
    if isinstance(ours, np.ndarray | np.generic) and isinstance(theirs, np.ndarray | np.generic):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and np.array_equal(ours, theirs)
    if isinstance(ours, np.ndarray):
        return bool(ours.tolist() == theirs)
    if isinstance(ours, np.generic):
        return type(ours.item()) is type(theirs) and bool(ours.item() == theirs)
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def by_pixels(value: Any) -> Any:
    """A value in which images are what they show, and not where they are."""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    if isinstance(value, dict):
        return {name: by_pixels(each) for name, each in value.items()}
    return type(value)(map(by_pixels, value)) if isinstance(value, list | tuple) else value


def check(found: list[Any], chunks: Chunks, name: str) -> None:
    expected = chunks.samples(name)
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert same(ours, theirs), (number, ours, theirs)


@pytest.mark.parametrize("name", [*SETS, *TOKENS])
def test_every_serializer_gives_what_their_reader_gives(name: str, chunks: Chunks, place: Place) -> None:
    root, options = place("disk", name)
    loader = al.DataLoader(recipe_of(root, name, **options), batch_size=8, collate_fn=list)
    found = [sample for batch in loader for sample in batch]
    check(found, chunks, name)
    assert len(loader) == -(-len(found) // 8)


@pytest.mark.parametrize(
    ("where", "workers", "names"),
    [
        ("disk", 2, KINDS[:1]),
        ("http", 0, KINDS[1:3]),
        ("s3", 2, KINDS[3:4]),
        *(
            pytest.param(where, workers, (*SETS, *TOKENS), marks=[pytest.mark.slow, pytest.mark.timeout(600)])
            for where in ("disk", "http", "s3")
            for workers in (0, 2)
        ),
    ],
)
def test_they_are_read_from_everywhere_and_resumed_at_every_fifth_batch(
    where: str, workers: int, names: tuple[str, ...], chunks: Chunks, place: Place
) -> None:
    for name in names:
        root, options = place(where, name)

        # Of a server, its index is fetched by a process of its own.
        recipe = recipe_of(root, name, **options)
        make_loader = partial(
            al.DataLoader, recipe, batch_size=2, num_workers=workers, lanes=2, collate_fn=list
        )
        whole: list[Any] = []
        states: list[tuple[int, str]] = []
        loader = make_loader()
        for number, batch in enumerate(loader, 1):
            whole.append(batch)
            if number % 5 == 0:
                states.append((number, json.dumps(loader.state_dict())))
        assert len(whole) == len(loader)
        in_order = [sample for lane in (0, 1) for batch in whole[lane::2] for sample in batch]
        check(in_order, chunks, name)
        for delivered, state in states:
            resumed = make_loader()
            resumed.load_state_dict(json.loads(state))
            rest = [*resumed]
            assert len(rest) == len(whole) - delivered
            for ours, before in zip(rest, whole[delivered:], strict=True):
                assert repr(by_pixels(ours)) == repr(by_pixels(before))


def test_lanes_are_cut_to_the_sample(place: Place) -> None:
    root, _ = place("disk", "tensor_flat")
    loader = al.DataLoader(al.from_litdata(root), batch_size=None, lanes=4)
    assert len(loader) == sum(1 for _ in loader) == 46


def test_fields_are_chosen_and_others_not_decoded(chunks: Chunks, place: Place) -> None:
    for name, columns in (("equal_shapes", ["y", "x"]), ("json_rows", ["n", "text"]), ("jpeg", ["label"])):
        root, _ = place("disk", name)
        (sample,) = al.from_litdata(root, columns=columns).head(1)
        assert list(sample) == columns
        assert same(sample, {column: chunks.samples(name)[0][column] for column in columns})
    with pytest.raises(ValueError, match="'labels'"):
        al.from_litdata(root, columns=["labels"])


def test_images_stay_bytes_if_they_are_not_to_be_decoded(place: Place) -> None:
    (sample,) = al.from_litdata(place("disk", "jpeg")[0], decode=False).head(1)
    assert sample["jpeg"].startswith(b"\xff\xd8")
    (sample,) = al.from_litdata(place("disk", "jpeg")[0], concurrency=4).head(1)
    assert sample["jpeg"].shape == (3, 11, 17) and sample["jpeg"].dtype == np.uint8


def test_a_wrong_number_is_told_before_the_index_is_looked_for() -> None:
    with pytest.raises(ValueError, match="concurrency should be a positive integer value"):
        al.from_litdata("https://nowhere.invalid/chunks", concurrency=0)


def test_tokens_are_one_array_a_batch(place: Place) -> None:
    root, _ = place("disk", "tokens_tensor")
    loader = al.DataLoader(al.from_litdata(root, block_size=BLOCK), batch_size=4)
    assert next(iter(loader))["tokens"].shape == (4, BLOCK)
    state = loader.state_dict()
    other = al.DataLoader(al.from_litdata(root, block_size=BLOCK - 1), batch_size=4)
    with pytest.raises(ValueError, match="block_size"):
        other.load_state_dict(state)


def test_a_chunk_that_differs_from_its_index_raises(chunks: Chunks, tmp_path: Path) -> None:
    for file in (chunks.folder / "tensor_flat").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    chunk = tmp_path / "chunk-0-3.bin"
    content = chunk.read_bytes()
    loader = al.DataLoader(al.from_litdata(tmp_path), batch_size=8, collate_fn=list)
    chunk.write_bytes(content + b"x")
    with pytest.raises(al.StoreError, match=r"chunk-0-3\.bin"):
        list(loader)
    flipped = bytearray(content)
    flipped[40] ^= 1  # of the lengths of the first sample's values
    chunk.write_bytes(flipped)
    with pytest.raises(al.FormatError, match="litdata") as raised:
        list(loader)
    assert raised.value.shard == str(chunk)
    assert (raised.value.sample, raised.value.offset) == (0, 36)
