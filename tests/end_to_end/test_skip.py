"""What is passed over within a budget: bad samples and bad shards, the same ones after every resume."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncloader as al
from asyncloader import testing

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS, EACH = 4, 11
LANES = 2
MANY = 1000

#: Of which functions make nothing.
BAD = {4, 5, 17, 21, 22, 23, 43}
GOOD = [number for number in range(SHARDS * EACH) if number not in BAD]


def _check(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["n"] in BAD:
        raise ValueError(f"no {sample['n']}")
    return sample


async def _check_later(sample: dict[str, Any]) -> dict[str, Any]:
    return _check(sample)


def _keep_if_good(sample: dict[str, Any]) -> bool:
    return bool(_check(sample))


def _write(folder: Path, shards: int = SHARDS) -> list[str]:
    paths = [folder / f"{shard}.jsonl" for shard in range(shards)]
    for shard, path in enumerate(paths):
        lines = [
            json.dumps({"n": shard * EACH + at, "__key__": f"k{shard * EACH + at}"}) for at in range(EACH)
        ]
        path.write_text("\n".join(lines) + "\n")
    return list(map(str, paths))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _write(tmp_path_factory.mktemp("skipped"))


def _loader(recipe: al.Dataset, budget: al.Skip | None = None, **options: Any) -> al.DataLoader[Any]:
    options = {"batch_size": 3, "lanes": LANES, "collate_fn": _numbers, **options}
    return al.DataLoader(recipe, on_error=budget or al.Skip(max=MANY), **options)


def _numbers(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample["n"]) for sample in samples]


def _drain(loader: al.DataLoader[Any]) -> list[int]:
    with loader:
        return sorted(number for batch in loader for number in batch)


RECIPES: dict[str, Callable[[list[str]], al.Dataset]] = {
    "map": lambda paths: al.from_urls(paths).map(_check),
    "map on threads, shuffled": lambda paths: al.from_urls(paths).shuffle(6).map(_check, concurrency=3),
    "map of coroutines": lambda paths: al.from_urls(paths).map(_check_later, concurrency=3).shuffle(5),
    "filter": lambda paths: al.from_urls(paths).filter(_keep_if_good).shuffle(5),
    "both": lambda paths: (
        al.from_urls(paths).filter(lambda s: _check(s)["n"] != 8).shuffle(4).map(_check).map(dict)
    ),
    "mixed": lambda paths: al.mix(
        [al.from_urls(paths[:2]).map(_check), al.from_urls(paths[2:]).filter(_keep_if_good)], stop="all"
    ),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_bad_samples_are_passed_over_and_all_others_come(
    name: str, ranks: int, workers: int, paths: list[str], tmp_path: Path
) -> None:
    numbers, skipped = [], 0
    for rank in range(ranks):
        options = {"rank": rank, "world_size": ranks, "num_workers": workers, "audit": tmp_path}
        loader = _loader(RECIPES[name](paths), **options)
        numbers += _drain(loader)
        skipped += loader.receipt().skipped
    assert sorted(numbers) == [number for number in GOOD if name != "both" or number != 8]
    assert skipped == len(BAD)
    (verdict,) = al.verify_audit(tmp_path)
    assert verdict.verdict == "exact"
    assert (verdict.samples, "on_error=Skip(...)" in verdict.reasons) == (len(numbers), True)


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_skipped_stays_so_after_every_resume_and_counts_once(name: str, paths: list[str]) -> None:
    loader = _loader(RECIPES[name](paths))
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
    for delivered, state in enumerate(states[:-1]):
        resumed = _loader(RECIPES[name](paths), num_workers=2 if delivered == 3 else 0)
        resumed.load_state_dict(state)
        assert [batch for batch in resumed] == batches[delivered:]
        assert resumed.receipt().skipped == len(BAD), f"after {delivered}"


def test_counts_of_repetitions_add_up(paths: list[str]) -> None:
    def make() -> al.DataLoader[Any]:
        return _loader(al.from_urls(paths).shuffle(4).map(_check).repeat(3))

    loader, states = make(), []
    for _ in loader:
        states.append(loader.state_dict())
    assert loader.receipt().skipped == 3 * len(BAD)
    for state in states[:-1:4]:
        resumed = make()
        resumed.load_state_dict(state)
        _drain(resumed)
        assert resumed.receipt().skipped == 3 * len(BAD)


def test_a_replaced_worker_skips_and_counts_what_the_killed_one_did(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check).map(lambda sample: {**sample, "pid": os.getpid()})
    loader = _loader(recipe, num_workers=2, collate_fn=lambda samples: samples)
    numbers = []
    for number, batch in enumerate(loader):
        numbers += _numbers(batch)
        if number == 2:
            os.kill(batch[0]["pid"], signal.SIGKILL)
    assert sorted(numbers) == GOOD
    assert (loader.receipt().skipped, loader.statistics.worker_restarts) == (len(BAD), 1)


def test_batches_as_they_are_done_count_alike(paths: list[str]) -> None:
    loader = _loader(al.from_urls(paths).map(_check), num_workers=2, in_order=False)
    assert _drain(loader) == GOOD
    assert loader.receipt().skipped == len(BAD)


# --- shards ---


def _cut_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for at in range(6):
            content = json.dumps({"n": 100 + at}).encode() + b" " * 2000
            member = tarfile.TarInfo(f"{at}.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with open(path, "r+b") as file:
        file.truncate(3 * 3072 + 600)


def _broken_parquet(path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(100, 106))}), path)
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\xff" * 40 + content[48:])


def _cut_gzip(path: Path) -> None:
    text = "".join(json.dumps({"n": 100 + at, "more": os.urandom(500).hex()}) + "\n" for at in range(6))
    path.write_bytes(gzip.compress(text.encode())[:-400])


SHARD_FAULTS: dict[str, Callable[[Path], Any]] = {
    "cut.tar": _cut_tar,
    "broken.parquet": _broken_parquet,
    "cut.jsonl.gz": _cut_gzip,
    "gone.jsonl": lambda path: None,
    "page.tar": lambda path: path.write_text("<html>not found</html>" * 100),
}


def _as_n(sample: dict[str, Any]) -> dict[str, Any]:
    return json.loads(sample["json"]) if "json" in sample else sample


@pytest.mark.parametrize("name", SHARD_FAULTS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_a_bad_shard_is_passed_over(name: str, workers: int, tmp_path: Path) -> None:
    good, bad, dead = _write(tmp_path), tmp_path / name, tmp_path / "dead.jsonl"
    SHARD_FAULTS[name](bad)
    recipe = al.from_urls([*good[:2], str(bad), *good[2:]]).map(_as_n)
    loader = _loader(recipe, al.Skip(max=1, dead_letters=dead), num_workers=workers)
    numbers = _drain(loader)
    assert [number for number in numbers if number < 100] == list(range(SHARDS * EACH))
    assert loader.receipt().skipped == 1
    (line,) = map(json.loads, dead.read_text().splitlines())
    assert (line["what"], line["shard"], line["during"]) == ("shard", str(bad), "reading")
    with pytest.raises((al.StoreError, al.FormatError)):
        _drain(al.DataLoader(recipe, 3, lanes=LANES, collate_fn=_numbers))


def test_a_shard_that_a_server_has_not_is_passed_over(tmp_path: Path) -> None:
    _write(tmp_path)
    with testing.serve(tmp_path) as server:
        names = [f"{shard}.jsonl" for shard in (0, 1, 9, 2, 3)]
        loader = _loader(al.from_urls([f"{server.url}/{name}" for name in names]))
        assert _drain(loader) == list(range(SHARDS * EACH))
    assert loader.receipt().skipped == 1


@pytest.mark.parametrize(
    ("suffix", "indexed"),
    [("jsonl", False), ("jsonl.gz", False), ("txt", False), ("jsonl", True), ("txt", True)],
)
def test_a_line_that_does_not_decode_is_passed_over_and_keeps_its_index(
    suffix: str, indexed: bool, tmp_path: Path
) -> None:
    lines = [json.dumps({"n": at}).encode() for at in range(40)]
    path = tmp_path / f"a.{suffix}"
    compress = gzip.compress if suffix.endswith("gz") else bytes
    path.write_bytes(compress(b"\n".join(lines) + b"\n"))
    if indexed:
        al.build_index(str(path))
    whole = path.read_bytes() if compress is bytes else gzip.decompress(path.read_bytes())
    at = whole.split(b"\n")
    for bad in (0, 7, 8, 20, 39):
        at[bad] = b"\xff" * len(at[bad])
    path.write_bytes(compress(b"\n".join(at)))
    wanted = [number for number in range(40) if number not in (0, 7, 8, 20, 39)]
    as_n = (lambda sample: json.loads(sample["text"])) if suffix == "txt" else dict

    def make() -> al.DataLoader[Any]:
        return _loader(al.from_urls(str(path)).map(as_n), lanes=2 if indexed else 1)

    loader, states, batches = make(), [], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict())
    assert sorted(chain.from_iterable(batches)) == wanted
    # The lane that reads to the end from the first byte on sees that it is not the shard of the manifest.
    assert loader.receipt().skipped == 5 + indexed
    for delivered, state in enumerate(states[:-1], 1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [*resumed] == batches[delivered:]
        assert indexed or resumed.receipt().skipped == 5


# --- the budget ---


@pytest.mark.parametrize("workers", [0, 2])
def test_more_than_max_over_all_lanes_is_an_error(workers: int, paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    assert _drain(_loader(recipe, al.Skip(max=len(BAD)), num_workers=workers)) == GOOD
    told = r"more than max=6; the last error was ValueError: no \d+, in map\(_check\) of sample \d+ of /"
    with pytest.raises(al.SkipBudgetError, match=told) as caught:
        _drain(_loader(recipe, al.Skip(max=len(BAD) - 1), num_workers=workers))
    assert (caught.value.epoch, caught.value.rank) == (0, 0)


def test_what_a_state_says_was_skipped_counts_in_the_budget(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    loader = _loader(recipe, lanes=1)
    for number, _ in enumerate(loader):
        if number == 6:
            state = loader.state_dict()
    resumed = _loader(recipe, al.Skip(max=len(BAD) - 1), lanes=1)
    resumed.load_state_dict(state)
    with pytest.raises(al.SkipBudgetError, match=f"{len(BAD)} samples and shards were skipped"):
        _drain(resumed)


def test_too_many_in_a_row_are_an_error(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    assert _drain(_loader(recipe, al.Skip(consecutive=3), lanes=1)) == GOOD
    with pytest.raises(
        al.SkipBudgetError, match=r"3 were skipped in a row, more than consecutive=2"
    ) as caught:
        _drain(_loader(recipe, al.Skip(consecutive=2), lanes=1))
    assert isinstance(caught.value.__cause__, ValueError)


def test_too_many_of_a_thousand_are_an_error() -> None:
    def make(every: int) -> al.Dataset:
        def fail(sample: dict[str, int]) -> dict[str, int]:
            return {"n": 1 // (sample["n"] % every)}

        return al.from_iterable([{"n": n} for n in range(5000)]).map(fail)

    _drain(_loader(make(100), al.Skip(rate=0.01), lanes=1))
    with pytest.raises(
        al.SkipBudgetError, match=r"11 of the last \d+ samples were skipped, more than rate=0.01"
    ):
        _drain(_loader(make(90), al.Skip(rate=0.01), lanes=1))


def test_a_function_that_always_fails_ends_the_epoch_soon() -> None:
    called = []

    def fail(sample: Any) -> None:
        called.append(sample)
        raise TypeError("wrong")

    with pytest.raises(al.SkipBudgetError, match="TypeError: wrong"):
        _drain(_loader(al.from_iterable(range(100_000)).map(fail), al.Skip(max=20), lanes=1))
    assert len(called) <= 64


# --- what is not skipped ---


def _fail(*_: Any) -> Any:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    "recipe",
    [
        lambda paths: al.from_urls(paths).map_batches(_fail, batch_size=4),
        lambda paths: al.zip({"a": al.from_urls(paths).map(_fail), "b": al.from_urls(paths)}).map(dict),
    ],
)
def test_errors_that_are_nobody_s_alone_are_raised(recipe: Any, paths: list[str]) -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        _drain(_loader(recipe(paths), al.Skip(max=MANY)))


def test_errors_of_collating_and_of_want_of_memory_are_raised(paths: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        _drain(_loader(al.from_urls(paths), collate_fn=_fail))

    def starve(sample: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        _drain(_loader(al.from_urls(paths).map(starve)))


def test_what_goes_together_in_a_zip_may_be_skipped_behind_it(paths: list[str]) -> None:
    both = al.zip({"a": al.from_urls(paths), "b": al.from_urls(paths)})
    assert _drain(_loader(both.map(lambda sample: _check(sample["a"])))) == GOOD


def test_errors_are_raised_by_default(paths: list[str]) -> None:
    with pytest.raises(ValueError, match="no 4"):
        _drain(al.DataLoader(al.from_urls(paths).map(_check), 3, collate_fn=_numbers))


def test_dead_letters_say_what_it_was(paths: list[str], tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    _drain(
        _loader(
            al.from_urls(paths).shuffle(5).map(_check), al.Skip(max=MANY, dead_letters=dead), num_workers=2
        )
    )
    lines = [json.loads(line) for line in dead.read_text().splitlines()]
    assert {line["sample"] + EACH * paths.index(line["shard"]) for line in lines} == BAD
    assert {line["key"] for line in lines} == {f"k{number}" for number in BAD}
    assert lines[0]["error"].startswith("ValueError: no ")
    assert {line["during"] for line in lines} == {"map(_check)"}
    assert {(line["what"], line["epoch"], line["rank"]) for line in lines} == {("sample", 0, 0)}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "Skip needs a budget: give max=, rate= or consecutive="),
        ({"max": -1}, "max should be a whole number of 0 or more"),
        ({"rate": 2}, "rate should be a number from 0 to 1"),
        ({"rate": True}, "rate should be a number from 0 to 1"),
        ({"consecutive": 0}, "consecutive"),
    ],
)
def test_a_budget_is_checked(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        al.Skip(**wrong)


def test_wrong_calls_are_told(paths: list[str]) -> None:
    with pytest.raises(TypeError, match="dead_letters should be the path of a file"):
        al.Skip(max=1, dead_letters=3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r'on_error should be "raise" or al.Skip\(...\), but got on_error=\'skip\''
    ):
        al.DataLoader(al.from_urls(paths), on_error="skip")
    with pytest.raises(TypeError, match="on_error can be given for streams only"):
        al.DataLoader([1, 2], on_error=al.Skip(max=1))
    with pytest.raises(TypeError, match=r"how many samples on_error=Skip\(...\) passes over"):
        len(_loader(al.from_urls(paths).take(4)))
