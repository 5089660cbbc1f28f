"""Whatever goes wrong on the way: every sample comes exactly once, or there is the one error that says so."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus import in_turn

import asyncloader as al
from asyncloader import testing

from .fault_rows import SECTIONS, flipped
from .fault_table import DAMAGED, DELIVERED, KINDS, SIZES, Row, bound_s, cases, render
from .shards import Sample, Shards, loader_of, make_shards, sample_of, samples_of

pytestmark = pytest.mark.usefixtures("fork_server")

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"
_ROWS = [row for rows in SECTIONS.values() for row in rows]


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Shards, list[Sample]]]:
    """By format, the shards, and their samples in the order of a healthy pass."""
    found = {}
    for kind in KINDS:
        shards = make_shards(kind, SIZES, tmp_path_factory.mktemp(kind))
        found[kind] = shards, shards.in_order()
    return found


@pytest.mark.parametrize(
    ("row", "kind", "workers"), cases(_ROWS), ids=lambda each: getattr(each, "name", each)
)
def test_a_fault_is_got_over_or_is_the_one_error(
    row: Row, kind: str, workers: int, data_sets: dict[str, Any], tmp_path: Path
) -> None:
    shards, in_order = data_sets[kind]
    with recipe_under(row, shards, tmp_path) as recipe, unleaking():
        began = time.monotonic()
        delivered, error = outcome_of(recipe, workers)
        took_s = time.monotonic() - began
    says = row.says(kind)
    if says == DELIVERED:
        assert error is None, f"not got over: {error}"
        assert delivered == in_order
    elif says == DAMAGED:
        assert error is None
        assert one_bit_apart(delivered, in_order)
    else:
        assert isinstance(error, row.error_of(kind)), (
            f"delivered {len(delivered)} of {len(in_order)}: {error!r}"
        )
        assert says in str(error)
        assert error.shard.endswith(f"/{row.shard}.{kind}")
        assert [key for key, _ in delivered] == [key for key, _ in in_order[: len(delivered)]]
    assert took_s < bound_s(row.network)


def test_the_documented_tables_are_the_tested_ones() -> None:
    assert render(SECTIONS) in _PAGE.read_text(), f"put these tables into {_PAGE}:\n{render(SECTIONS)}"


@contextmanager
def recipe_under(row: Row, shards: Shards, folder: Path, **more: Any) -> Iterator[al.Dataset]:
    """The recipe of a row, while its server runs."""
    objects: dict[str, bytes] = {**shards.contents, "elsewhere": shards.contents[f"big.{shards.kind}"]}
    objects["asyncloader-index.json"] = (shards.folder / "asyncloader-index.json").read_bytes()
    with testing.serve(objects, row.faults(shards), **row.server) as server:
        options: dict[str, Any] = {"network": row.network, **more}
        if row.renewed:
            options["renew"] = lambda url: url.partition("?")[0] + row.renewed
        options["index"] = server.url_of("asyncloader-index.json") if row.index else None
        urls = [server.url_of(name) + row.query for name in shards.contents]
        if row.cache:
            options["cache_dir"] = folder / "cache"
        if row.cache == "small":
            options["cache_limit"] = 1 << 20
        if row.cache == "damaged":
            samples_of(loader_of(al.from_urls(urls, **options)))
            damage(folder / "cache", shards)
        yield in_turn(al.from_urls(urls, **options))  # with an index as without


def unleaking() -> AbstractContextManager[Any]:
    """The leak check, less the semaphores of other programs on the machine: the library makes none."""
    return testing.check_leaks()


def damage(cache: Path, shards: Shards) -> None:
    """Flip a bit near the end of every file."""
    files = [path for path in cache.rglob("shards/*/*") if path.is_file()]
    assert len(files) == sum(1 for content in shards.contents.values() if content)
    for path in files:
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)


def outcome_of(recipe: al.Dataset, workers: int) -> tuple[list[Sample], Exception | None]:
    """What is delivered, and the error that ends it."""
    delivered: list[Sample] = []
    error: Exception | None = None
    with warnings.catch_warnings(), loader_of(recipe, workers) as loader:
        warnings.filterwarnings("ignore", "the disk cache held a damaged copy", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*there is no room for it", RuntimeWarning)
        try:
            for batch in loader:
                delivered += map(sample_of, batch)
        except Exception as raised:
            error = raised
    return delivered, error


def one_bit_apart(delivered: list[Sample], sent: list[Sample]) -> bool:
    """Whether one bit of one text differs, and nothing else."""
    pairs = [(one, other) for one, other in zip(delivered, sent, strict=True) if one != other]
    if len(pairs) != 1 or pairs[0][0][0] != pairs[0][1][0]:
        return False
    bits = [(one ^ other).bit_count() for one, other in zip(pairs[0][0][1], pairs[0][1][1], strict=True)]
    return sum(bits) == 1


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_a_bit_flipped_on_its_way_into_the_cache_is_not_kept_for_good(
    kind: str, data_sets: dict[str, Any], tmp_path: Path
) -> None:
    shards, in_order = data_sets[kind]
    row = Row("", lambda shards: [replace(fault, times=1) for fault in flipped(shards)], "", index=True)
    with recipe_under(row, shards, tmp_path, cache_dir=tmp_path / "cache") as recipe, unleaking():
        delivered, error = outcome_of(recipe, 0)
        # None if its file was whole, and so found out, before the reader had come to that bit.
        assert delivered == in_order if error is None else "was promised" in str(error)
        assert outcome_of(recipe, 0) == (in_order, None)


def test_a_proxy_that_cuts_every_answer_costs_requests_and_no_sample() -> None:
    lines = [f"{number:099d}\n".encode() for number in range(20_000)]
    network = al.NetworkPolicy(attempts=2, backoff_s=0.01)
    with testing.serve({"x.txt": b"".join(lines)}, [testing.CutAt(200_000)]) as server:
        dataset = al.from_urls(server.url_of("x.txt"), network=network)
        with al.DataLoader(dataset, batch_size=1000, collate_fn=list) as loader:
            found = [int(sample["text"]) for batch in loader for sample in batch]
    assert found == list(range(20_000))
