"""Shards that are damaged in the disk cache while a run goes on: noticed as they are read, fetched again."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.formats.fields import encode_jsonl_sample, encode_tar_sample, tar_end

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS, SAMPLES, SAMPLE_BYTES = 3, 60, 40_000

# Behind header and checksums, in a stretch that is not the shard's first one.
_AT = 1_500_000


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, _AT)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), _AT)


def zero_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), _AT // 4096 * 4096)


def zero_the_checksums(path: Path) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), 4096)


def truncate(path: Path) -> None:
    os.truncate(path, _AT)


def replace(path: Path) -> None:
    """Another file under its name, which looks right: header, marks and length are."""
    content = bytearray(path.read_bytes())
    content[_AT:] = Random(1).randbytes(len(content) - _AT)
    path.with_name("other").write_bytes(content)
    path.with_name("other").rename(path)


DAMAGES = [flip, zero_a_page, zero_the_checksums, truncate, replace]


def _tar(samples: list[dict[str, Any]]) -> bytes:
    return b"".join(map(encode_tar_sample, samples)) + tar_end


def _jsonl(samples: list[dict[str, Any]]) -> bytes:
    return b"".join(encode_jsonl_sample({"n": int(one["__key__"]), "x": one["x"].hex()}) for one in samples)


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "tar": _tar,
    "tar.gz": lambda samples: gzip.compress(_tar(samples), 1),
    "jsonl": _jsonl,
    "jsonl.gz": lambda samples: gzip.compress(_jsonl(samples), 1),
}


@pytest.fixture(scope="module")
def samples() -> list[list[dict[str, Any]]]:
    return [
        [
            {"__key__": str(shard * SAMPLES + n), "x": Random(shard * SAMPLES + n).randbytes(SAMPLE_BYTES)}
            for n in range(SAMPLES)
        ]
        for shard in range(SHARDS)
    ]


@pytest.fixture(scope="module")
def contents(samples: list[list[dict[str, Any]]]) -> Callable[[str], dict[str, bytes]]:
    return cache(lambda suffix: {f"{n}.{suffix}": FORMATS[suffix](shard) for n, shard in enumerate(samples)})


@pytest.fixture
def server_of(contents: Callable[[str], dict[str, bytes]]) -> Iterator[Callable[[str], Any]]:
    with ExitStack() as opened:
        yield lambda suffix: opened.enter_context(testing.serve(contents(suffix)))


def loader_of(server: testing.Server, suffix: str, cache: Path, workers: int) -> al.DataLoader[Any]:
    urls = [server.url_of(f"{n}.{suffix}") for n in range(SHARDS)]
    recipe = al.from_urls(urls, cache_dir=cache)
    return al.DataLoader(recipe, 10, num_workers=workers, collate_fn=list, lanes=2, memory_limit=16 << 20)


def plain(batches: list[Any]) -> list[str]:
    """The digest of each sample, whichever shard it is from."""
    return [digest(one) for batch in batches for one in batch]


def digest(sample: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, value in sorted(sample.items()):
        if name != "__url__":
            found.update(f"{name}: {type(value).__name__}, ".encode())
            found.update(value if isinstance(value, bytes) else str(value).encode())
    return found.hexdigest()


def kept(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("asyncloader-v1/shards/*/*"))


def told(caught: Any) -> int:
    """How often damage was told of in this process; workers print it where their server was started."""
    return sum("damaged copy" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("damage", "workers"), [*((damage, 0) for damage in DAMAGES), (flip, 2)])
def test_damage_between_two_epochs_is_told_once_and_costs_no_byte(
    damage: Callable[[Path], None],
    workers: int,
    server_of: Any,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    server = server_of("tar")
    with testing.check_leaks(within_s=5), loader_of(server, "tar", tmp_path, workers) as loader:
        expected = plain(list(loader))
        assert len(expected) == SHARDS * SAMPLES
        for path in kept(tmp_path)[1:]:
            damage(path)
        assert plain(list(loader)) == expected
        assert told(recwarn) == (0 if workers else SHARDS - 1)
        recwarn.clear()
        assert plain(list(loader)) == expected  # which downloads what was put aside
        assert len(kept(tmp_path)) == SHARDS
        before = server.counters.requests
        assert plain(list(loader)) == expected
        assert server.counters.requests == before
        assert told(recwarn) == 0


@pytest.mark.parametrize(
    ("suffix", "workers"), [*((suffix, 0) for suffix in FORMATS), ("tar", 2), ("jsonl.gz", 2)]
)
@pytest.mark.filterwarnings("ignore:the disk cache held a damaged copy:RuntimeWarning")
def test_damage_between_two_batches_costs_no_byte(
    suffix: str, workers: int, server_of: Any, tmp_path: Path
) -> None:
    with loader_of(server_of(suffix), suffix, tmp_path, workers) as loader:
        expected = plain(list(loader))
        for nth, damage in enumerate((flip, truncate)):
            batches = iter(loader)
            got = [next(batches) for _ in range(3)]
            for path in kept(tmp_path):
                damage(path)
            assert plain([*got, *batches]) == expected, nth
            assert plain(list(loader)) == expected
            assert plain(list(loader)) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:the disk cache held a damaged copy:RuntimeWarning")
def test_a_run_that_resumes_within_a_damaged_shard_gets_its_bytes(
    workers: int, server_of: Any, tmp_path: Path
) -> None:
    with loader_of(server_of("tar"), "tar", tmp_path, workers) as loader:
        expected = plain(list(loader))
        batches = iter(loader)
        got = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        batches.close()
        for path in kept(tmp_path):
            flip(path)
        loader.load_state_dict(state)
        assert plain([*got, *loader]) == expected
