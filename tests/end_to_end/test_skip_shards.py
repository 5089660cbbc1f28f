"""The rest of a shard that is cut, corrupt or gone is passed over, and lines of it that do not decode."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import asyncloader as al
from asyncloader import testing

from .skipping import EACH, LANES, SHARDS, drained, loader_of, numbers_of, write_numbers

pytestmark = pytest.mark.usefixtures("fork_server")


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
    good, bad, dead = write_numbers(tmp_path), tmp_path / name, tmp_path / "dead.jsonl"
    SHARD_FAULTS[name](bad)
    recipe = al.from_urls([*good[:2], str(bad), *good[2:]]).map(_as_n)
    loader = loader_of(recipe, al.SkipErrors(max=1, dead_letters=dead), num_workers=workers)
    numbers = drained(loader)
    assert [number for number in numbers if number < 100] == list(range(SHARDS * EACH))
    assert loader.statistics.skipped == 1
    (line,) = map(json.loads, dead.read_text().splitlines())
    assert (line["what"], line["shard"], line["during"]) == ("shard", str(bad), "reading")
    with pytest.raises((al.StoreError, al.FormatError)):
        drained(al.DataLoader(recipe, 3, lanes=LANES, collate_fn=numbers_of))


def test_a_shard_that_a_server_has_not_is_passed_over(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    with testing.serve(tmp_path) as server:
        names = [f"{shard}.jsonl" for shard in (0, 1, 9, 2, 3)]
        loader = loader_of(al.from_urls([f"{server.url}/{name}" for name in names]))
        assert drained(loader) == list(range(SHARDS * EACH))
    assert loader.statistics.skipped == 1


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
        return loader_of(al.from_urls(str(path)).map(as_n), lanes=2 if indexed else 1)

    loader, states, batches = make(), [], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict())
    assert sorted(chain.from_iterable(batches)) == wanted
    # The lane that reads to the end from the first byte on sees that it is not the shard of the index.
    assert loader.statistics.skipped == 5 + indexed
    for delivered, state in enumerate(states[:-1], 1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [*resumed] == batches[delivered:]
        assert indexed or resumed.statistics.skipped == 5


# --- zstd ---

# Numbers in each of three frames: more than a step of what is decompressed at once.
FRAME = 4000


def _packed(suffix: str, first: int) -> bytes:
    """A frame of samples, of which none of the others has a part."""
    samples = [{"n": number, "x": f"{number * number:x}" * 4} for number in range(first, first + FRAME)]
    if suffix == "jsonl.zst":
        body = "".join(json.dumps(sample) + "\n" for sample in samples).encode()
    else:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for sample in samples:
                content = json.dumps(sample).encode()
                member = tarfile.TarInfo(f"{sample['n']}.json")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            body = file.getvalue()[: tar.offset]  # without the end of the archive
    return zstandard.ZstdCompressor(write_checksum=True).compress(body)


@pytest.mark.parametrize("suffix", ["jsonl.zst", "tar.zst"])
def test_behind_damage_in_a_zstd_frame_the_rest_of_the_shard_is_passed_over_also_after_a_resume(
    suffix: str, tmp_path: Path
) -> None:
    good, dead = write_numbers(tmp_path), tmp_path / "dead.jsonl"
    frames = [_packed(suffix, 100 + FRAME * nth) for nth in range(3)]
    frames[1] = frames[1][:-1000] + bytes(20) + frames[1][-980:]
    (tmp_path / f"bad.{suffix}").write_bytes(b"".join(frames))

    def make(bad: str, workers: int = 0) -> al.DataLoader[Any]:
        recipe = al.from_urls([*good[:2], bad, *good[2:]]).map(_as_n)
        return loader_of(recipe, al.SkipErrors(max=1, dead_letters=dead), num_workers=workers, batch_size=150)

    loader, states, batches = make(str(tmp_path / f"bad.{suffix}")), [], []
    for batch in loader:
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
    numbers = sorted(chain.from_iterable(batches))
    of_bad = numbers[SHARDS * EACH :]
    assert numbers[: SHARDS * EACH] == list(range(SHARDS * EACH))
    assert FRAME <= len(of_bad) < 2 * FRAME and of_bad == list(range(100, 100 + len(of_bad)))
    assert loader.statistics.skipped == 1
    (line,) = map(json.loads, dead.read_text().splitlines())
    assert (line["what"], line["sample"], line["during"]) == ("shard", len(of_bad), "reading")
    assert line["error"].startswith("FormatError: zstd: corrupt data") and line["offset"] > 0
    for delivered, state in enumerate(states[:-1], 1):
        resumed = make(str(tmp_path / f"bad.{suffix}"), workers=2 if delivered == 2 else 0)
        resumed.load_state_dict(state)
        assert [*resumed] == batches[delivered:]
        assert resumed.statistics.skipped == 1, f"after {delivered}"


@pytest.mark.parametrize("suffix", ["jsonl.zst", "jsonl.gz", "jsonl.xz"])
def test_what_is_lost_does_not_depend_on_how_the_bytes_came(suffix: str, tmp_path: Path) -> None:
    """A connection that trickles gives other chunks than a fast one, and a resume others again."""
    text = "".join(json.dumps({"n": n, "x": f"{n * n:x}"}) + "\n" for n in range(90_000)).encode()
    pack = {"zst": zstandard.compress, "gz": gzip.compress, "xz": lzma.compress}[suffix[6:]]
    packed = bytearray(pack(text))
    packed[len(packed) // 2 : len(packed) // 2 + 30] = bytes(30)
    (tmp_path / f"bad.{suffix}").write_bytes(packed)
    found = []
    for rate in (None, 600_000):
        with testing.serve(tmp_path, rate_bytes_s=rate) as server:
            # Bytes that no checksum is of may be garbage, which is delivered as it is.
            recipe = al.from_urls(server.url_of(f"bad.{suffix}"))
            loader = loader_of(recipe, al.SkipErrors(max=len(text)), lanes=1, batch_size=100, collate_fn=str)
            found.append(([*loader], loader.statistics.skipped))
    assert found[0] == found[1]
    assert len(found[0][0]) > 20 and found[0][1]
