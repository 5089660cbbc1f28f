"""An error names shard and line of the sample it is about, though the sample itself does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

import asyncloader as al

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])

BAD = 13  # The number that the functions refuse.


def _shards(folder: Path, suffix: str = "") -> list[Path]:
    """The numbers 0 to 19, ten a shard, with a blank line before each multiple of 4."""
    paths = [folder / f"{shard}.jsonl{suffix}" for shard in range(2)]
    for shard, path in enumerate(paths):
        lines = []
        for number in range(10 * shard, 10 * shard + 10):
            tokens = [number] * (2 if number == BAD else 1)
            lines += ["\n"] * (number % 4 == 0) + [json.dumps({"number": number, "tokens": tokens}) + "\n"]
        body = "".join(lines).encode()
        path.write_bytes(zstandard.compress(body) if suffix else body)
    return paths


def _line_of(path: Path, number: int) -> int:
    body = path.read_bytes()
    lines = (zstandard.decompress(body) if path.suffix == ".zst" else body).splitlines()
    return next(nth for nth, line in enumerate(lines, 1) if line and json.loads(line)["number"] == number)


def _refuse(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == BAD:
        raise LookupError("refused")
    return sample


async def _refuse_async(sample: dict[str, Any]) -> dict[str, Any]:
    return _refuse(sample)


def notes_of(loader: Any, kind: type[Exception]) -> list[str]:
    with pytest.raises(kind) as caught:
        list(loader)
    notes: list[str] = caught.value.__notes__
    return notes


OPERATORS: dict[str, Callable[[al.Dataset], al.Dataset]] = {
    "map": lambda recipe: recipe.map(_refuse),
    "threads": lambda recipe: recipe.map(_refuse, concurrency=3),
    "async": lambda recipe: recipe.map(_refuse_async, concurrency=3),
    "filter": lambda recipe: recipe.filter(_refuse),
    "behind others": lambda recipe: (
        recipe.shuffle(6).filter(lambda sample: sample["number"] > 3).take(15).map(_refuse)
    ),
    "behind two windows": lambda recipe: recipe.shuffle(6).map(dict).shuffle(7).map(_refuse),
    "repeated": lambda recipe: recipe.filter(lambda sample: sample["number"] > 10).repeat(2).map(_refuse),
}


@WORKERS
@pytest.mark.parametrize("operators", OPERATORS)
def test_a_function_that_fails_is_told_shard_and_line(operators: str, workers: int, tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    recipe = OPERATORS[operators](al.from_urls(paths))
    loader = al.DataLoader(recipe, 2, num_workers=workers, lanes=2, collate_fn=list)
    place = f"of sample 3 of {paths[1]}, line {_line_of(paths[1], BAD)}"
    assert place in notes_of(loader, LookupError)[0]


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_after_a_resume_a_line_is_told_only_if_it_is_known(suffix: str, tmp_path: Path) -> None:
    paths = _shards(tmp_path, suffix)
    recipe = al.from_urls(paths).map(_refuse)
    loader = al.DataLoader(recipe, 2, collate_fn=list)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    resumed = al.DataLoader(recipe, 2, collate_fn=list)
    resumed.load_state_dict(loader.state_dict())
    note = notes_of(resumed, LookupError)[0]
    # Blank lines are no samples, so that their number before a byte in the middle is not known.
    line = f", line {_line_of(paths[1], BAD)}" if suffix else ""
    assert f"of sample 3 of {paths[1]}{line} (fields: number, tokens)" in note


def test_lines_of_text_are_told_also_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n\n" for number in range(10)))

    def refuse(sample: dict[str, str]) -> dict[str, str]:
        if sample["text"] == "7":
            raise LookupError("refused")
        return sample

    recipe = al.from_urls(path, format="text").map(refuse)
    loader = al.DataLoader(recipe, 2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = al.DataLoader(recipe, 2)
    resumed.load_state_dict(loader.state_dict())
    assert f"sample 14 of {path}, line 15, __key__ '14'" in notes_of(resumed, LookupError)[0]


def test_a_field_that_a_sample_lacks_is_told_by_shard_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"b": 3}\n')
    delivered: list[Any] = []
    with pytest.raises(KeyError) as caught:
        delivered.extend(al.DataLoader(al.from_urls(path).select_columns("a"), 1, collate_fn=list))
    assert delivered == [[{"a": 1}], [{"a": 2}]]
    assert caught.value.__notes__[0] == f"in select_columns() of sample 2 of {path}, line 3 (fields: b)"


@WORKERS
@pytest.mark.parametrize("collate", ["default", "pad", "around"])
def test_what_does_not_collate_is_told_shard_and_line(collate: str, workers: int, tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    collate_fn = {
        "default": None,
        "pad": al.Pad({"number": 0}),  # which are no sequences
        "around": lambda samples: al.default_collate(samples[::-1]),
    }[collate]
    recipe = al.from_urls(paths).shuffle(5)
    if collate == "pad":
        recipe = recipe.map(lambda sample: {**sample, "number": [0] if sample["number"] != BAD else "x"})
    loader = al.DataLoader(recipe, 5, num_workers=workers, lanes=2, collate_fn=collate_fn)
    with pytest.raises(Exception) as caught:
        list(loader)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert f"(sample 3 of {paths[1]}, line {_line_of(paths[1], BAD)})" in told
    assert "in collate_fn of 5 samples: samples " in told


def test_the_other_fields_of_a_padded_batch_are_told_by_their_place(tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    recipe = al.from_urls(paths).map(lambda sample: {**sample, "padded": [1]})
    with pytest.raises(RuntimeError) as caught:
        list(al.DataLoader(recipe, 5, collate_fn=al.Pad({"padded": 0})))
    assert f"(sample 3 of {paths[1]}, line {_line_of(paths[1], BAD)})" in caught.value.__notes__[0]


def test_a_collate_fn_of_your_own_is_told_the_samples_of_its_batch(tmp_path: Path) -> None:
    paths = _shards(tmp_path)

    def refuse(samples: list[dict[str, Any]]) -> Any:
        samples.clear()  # the list is its own
        raise LookupError("refused")

    notes = notes_of(al.DataLoader(al.from_urls(paths), 12, collate_fn=refuse), LookupError)
    assert notes[0] == (
        f"in collate_fn of 12 samples: samples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 of {paths[0]}; "
        f"samples 0, 1 of {paths[1]}"
    )


def test_one_sample_that_is_not_batched_is_told_by_its_place(tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    notes = notes_of(al.DataLoader(al.from_urls(paths), None, collate_fn=_refuse), LookupError)
    assert notes[0] == f"in collate_fn of sample 3 of {paths[1]}, line {_line_of(paths[1], BAD)}"


def test_a_collate_fn_may_change_the_list_it_is_given(tmp_path: Path) -> None:
    recipe = al.from_urls(_shards(tmp_path))

    def take_all(samples: list[dict[str, Any]]) -> list[int]:
        return [samples.pop(0)["number"] for _ in range(len(samples))]

    loader = al.DataLoader(recipe, 5, collate_fn=take_all)
    batches = iter(loader)
    first = next(batches)
    resumed = al.DataLoader(recipe, 5, collate_fn=take_all)
    resumed.load_state_dict(loader.state_dict())
    assert [first, *resumed] == [list(range(at, at + 5)) for at in range(0, 20, 5)]
    assert loader.statistics.samples == 5


def test_samples_of_an_iterable_are_told_by_their_number() -> None:
    recipe = al.from_iterable(lambda topology: topology.split(range(20))).map(
        lambda number: 1 // (number - 9)
    )
    assert notes_of(al.DataLoader(recipe, 2, lanes=2), ZeroDivisionError)[0].endswith(
        "of sample 4, of type int"
    )


def _end(ending: type[BaseException], sample: Any) -> Any:
    if sample["number"] == BAD:
        raise ending("no more")
    return sample


async def _end_async(ending: type[BaseException], sample: Any) -> Any:
    return _end(ending, sample)


def _end_many(ending: type[BaseException], columns: Any) -> Any:
    for number in columns["number"]:
        _end(ending, {"number": number})
    return columns


CALLS: dict[str, Callable[[al.Dataset, type[BaseException]], tuple[al.Dataset, dict[str, Any]]]] = {
    "map": lambda recipe, ending: (recipe.map(partial(_end, ending)), {}),
    "threads": lambda recipe, ending: (recipe.map(partial(_end, ending), concurrency=3), {}),
    "async": lambda recipe, ending: (recipe.map(partial(_end_async, ending), concurrency=3), {}),
    "filter": lambda recipe, ending: (recipe.filter(partial(_end, ending)), {}),
    "map_batches": lambda recipe, ending: (recipe.map_batches(partial(_end_many, ending), batch_size=1), {}),
    "filter_batches": lambda recipe, ending: (
        recipe.filter_batches(lambda columns: _end_many(ending, columns) and [True], batch_size=1),
        {},
    ),
    "collate_fn": lambda recipe, ending: (
        recipe,
        {"batch_size": 1, "collate_fn": lambda samples: [_end(ending, sample) for sample in samples]},
    ),
    "length": lambda recipe, ending: (
        recipe.select_columns("number"),
        {"batching": al.TokenBatches(length=lambda sample: len(_end(ending, sample)), max_tokens=3)},
    ),
}


@pytest.mark.parametrize("ending", [StopIteration, StopAsyncIteration, SystemExit])
@pytest.mark.parametrize("call", CALLS)
def test_an_ending_that_a_function_raises_is_an_error_that_names_the_sample(
    call: str, ending: type[BaseException], tmp_path: Path
) -> None:
    paths = _shards(tmp_path)
    recipe, options = CALLS[call](al.from_urls(paths), ending)
    workers = 1 if ending is StopIteration else 0
    if "batching" not in options:
        options = {"collate_fn": list, "batch_size": 2, **options}
    loader = al.DataLoader(recipe, num_workers=workers, **options)
    with pytest.raises(RuntimeError, match=rf"raised {ending.__name__}") as caught:
        _drain_async(loader) if ending is StopAsyncIteration else list(loader)
    assert f"sample 3 of {paths[1]}" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, ending)
    if call in ("map", "filter"):
        skipping = al.DataLoader(recipe, 2, collate_fn=len, on_error=al.SkipErrors(max=1))
        assert (sum(skipping), skipping.statistics.skipped) == (19, 1)


def _drain_async(loader: al.DataLoader[Any]) -> None:
    async def drain() -> None:
        async for _ in loader:
            pass

    asyncio.run(drain())


def test_an_iterable_that_raises_the_end_of_another_loop_does_not_end_that_one() -> None:
    class Failing:
        def __iter__(self) -> Failing:
            return self

        def __next__(self) -> int:
            raise StopAsyncIteration

    with pytest.raises(RuntimeError, match="raised StopAsyncIteration"):
        _drain_async(al.DataLoader(al.from_iterable(lambda topology: Failing())))
