"""Folders of MDS and LitData, whose index names the shards and tells how many samples each has."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from foreign_folders import BLOCK, record, write_litdata, write_mds, write_tokens, write_tuples
from mds_files import joined, mds

import asyncloader as al

from .corpora import counts_of, files_of, plain, samples_of

COUNTS = (11, 0, 26, 3)
SAMPLES = sum(COUNTS)
WRITERS: dict[str, Callable[..., Path]] = {"mds": write_mds, "litdata": write_litdata}
KINDS = [(format, compression) for format in WRITERS for compression in (None, "zstd")]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(filter(None, kind)))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder of each kind, and its format."""
    format, compression = request.param
    return WRITERS[format](tmp_path / "in", COUNTS, compression), format


def kept(to: str, number: int) -> dict[str, Any]:
    """What a target has of a sample, as Python has it."""
    sample = plain(record(number))
    if to != "tar":
        return sample
    number, tokens = sample.pop("id"), sample.pop("tokens")
    return {"__key__": f"{number:09d}", **sample, "tokens.npy": tokens, "json": {"id": number}}


@pytest.mark.parametrize(("to", "workers"), [("tar", 0), ("tar.zst", 2), ("parquet", 0)])
def test_every_sample_is_kept_as_it_was_and_images_are_the_bytes_of_their_files(
    folder: tuple[Path, str], to: str, workers: int, tmp_path: Path
) -> None:
    source, format = folder
    done = al.convert(
        source, tmp_path / "out", format=format, to=to, samples_per_shard=7, num_workers=workers
    )
    assert (done.samples, done.shards, done.made) == (SAMPLES, 6, 6)
    stored = [path.stat().st_size for path in source.iterdir() if path.name != "index.json"]
    assert done.source_bytes == sum(stored)
    assert counts_of(tmp_path / "out") == [7, 7, 7, 7, 6, 6]
    found = al.from_urls(f"{tmp_path}/out/").decode().head(1000)
    found = [{name: plain(value) for name, value in sample.items() if name != "__url__"} for sample in found]
    assert found == [kept(to.partition(".")[0], number) for number in range(SAMPLES)]
    assert al.convert(source, tmp_path / "out", format=format, to=to, samples_per_shard=7).made == 0


def test_fields_are_chosen_and_json_keeps_those_that_it_can(folder: tuple[Path, str], tmp_path: Path) -> None:
    source, format = folder
    options: Any = {"format": format, "to": "jsonl", "num_workers": 0}
    with pytest.raises(ValueError, match="field 'image' is bytes, which JSON has no form for"):
        al.convert(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    al.convert(source, tmp_path / "out", columns=["tokens", "id"], **options)
    found = samples_of(f"{tmp_path}/out/")
    assert [[*sample] for sample in found] == [["tokens", "id"]] * SAMPLES
    assert [plain(sample["tokens"]) for sample in found] == [
        kept("jsonl", n)["tokens"] for n in range(SAMPLES)
    ]
    with pytest.raises(ValueError, match=r"no column 'nix'.*it has 'id'"):
        al.convert(source, tmp_path / "nix", columns=["nix"], **options)


def test_the_index_tells_the_counts_and_no_shard_is_read_to_be_counted(
    folder: tuple[Path, str], tmp_path: Path
) -> None:
    source, format = folder
    al.convert(source, tmp_path / "out", format=format, num_workers=0)
    noted = json.loads((tmp_path / "out/.convert/job.json").read_text())["cuts"]
    # But for the one that is called empty, which nobody would read otherwise.
    assert [*noted["counted"]] == ["1"]


def test_blocks_of_tokens_are_samples(tmp_path: Path) -> None:
    # Of the chunks at both ends, no document is as long as a block.
    source = write_tokens(tmp_path / "in", (1, 20, 1))
    for number, workers in enumerate((0, 2)):
        options: Any = {"format": "litdata", "block_size": BLOCK, "to": "jsonl", "num_workers": workers}
        done = al.convert(source, tmp_path / f"{number}", samples_per_shard=3, **options)
        first, tokens = 1, sum(document % 3 + 1 for document in range(1, 21))
        bounds = pairwise(range(first, first + tokens + 1, BLOCK))
        assert samples_of(f"{tmp_path}/{number}/") == [{"tokens": [*range(*bound)]} for bound in bounds]
        assert done.samples == tokens // BLOCK
    assert files_of(tmp_path / "0") == files_of(tmp_path / "1")
    with pytest.raises(ValueError, match="was made with block_size=4, and is now to be made with 5"):
        al.convert(source, tmp_path / "1", samples_per_shard=3, **{**options, "block_size": 5})


def test_the_values_of_a_tuple_are_named_by_their_places(tmp_path: Path) -> None:
    source = write_tuples(tmp_path / "in", (3, 2))
    for to in ("jsonl", "parquet"):
        al.convert(source, tmp_path / to, format="litdata", to=to, num_workers=0)
        assert samples_of(f"{tmp_path}/{to}/") == [
            {"0": number, "1": f"text {number}"} for number in range(5)
        ]


def test_images_of_shards_that_are_named_stay_bytes_too(tmp_path: Path) -> None:
    source = write_mds(tmp_path / "in", (5,))
    al.convert(f"{source}/*.mds", tmp_path / "out", num_workers=0)
    found = samples_of(f"{tmp_path}/out/")
    assert [sample["image"] for sample in found] == [record(number)["image"] for number in range(5)]


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("samples_per_shard", [4, 1000])
def test_a_shard_is_held_against_the_digest_that_its_index_has(
    samples_per_shard: int, tmp_path: Path
) -> None:
    source = write_mds(tmp_path / "in", (10, 20))
    path = source / "shard.00001.mds"
    content = bytearray(path.read_bytes())
    content[content.index(b"sample 15")] ^= 1
    path.write_bytes(content)
    for _ in range(2):  # nor does a second call take what the first one made for sound
        with pytest.raises(al.StoreError, match="sha256") as caught:
            al.convert(
                source, tmp_path / "out", format="mds", samples_per_shard=samples_per_shard, num_workers=0
            )
        assert caught.value.shard == str(path)
        assert not (tmp_path / "out/asyncloader-index.json").exists()


@pytest.mark.parametrize("said", [0, 9, 11])
@pytest.mark.parametrize("format", WRITERS)
def test_an_index_of_another_count_is_an_error(format: str, said: int, tmp_path: Path) -> None:
    source = WRITERS[format](tmp_path / "in", (4, 10, 4))

    def change(index: dict[str, Any]) -> None:
        if format == "mds":
            index["shards"][1]["samples"] = said
        else:
            index["chunks"][1]["chunk_size"] = said

    changed(source, change)
    with pytest.raises(al.FormatError, match=f"index.json promises {said} samples of this shard, found 10"):
        al.convert(source, tmp_path / "out", format=format, samples_per_shard=5, num_workers=0)
    assert not (tmp_path / "out/asyncloader-index.json").exists()


def test_an_index_that_was_changed_since_is_another_source(tmp_path: Path) -> None:
    source = write_litdata(tmp_path / "in", (4, 10))
    options: Any = {"format": "litdata", "num_workers": 0}
    al.convert(source, tmp_path / "out", **options)
    changed(source, lambda index: index.update(more=1))
    with pytest.raises(ValueError, match=r"was made of other sources: '.*/index.json' has changed since"):
        al.convert(source, tmp_path / "out", **options)
    assert al.convert(source, tmp_path / "out", overwrite=True, **options).made == 1


@pytest.mark.parametrize("to", ["tar", "jsonl", "parquet"])
def test_images_that_are_no_files_are_refused_before_anything_is_written(to: str, tmp_path: Path) -> None:
    pixels = struct.pack("<III", 2, 1, 3) + b"RGB" + bytes(6)
    content = mds([("pixels", "pil", None)], [joined([pixels], [None])])
    (tmp_path / "a.mds").write_bytes(content)
    with pytest.raises(ValueError, match=r"field 'pixels' (is Image, which|has values that no one type)"):
        al.convert(tmp_path / "a.mds", tmp_path / "out", to=to, num_workers=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("urls", "options", "message"),
    [
        (
            ["{in}", "{in}"],
            {"format": "mds"},
            "takes one URL, that of the folder with the index.json, but got 2",
        ),
        (["{in}/shard.00000.mds"], {"format": "mds"}, "there is no '.*index.json': a folder of MDS"),
        (["{in}/.."], {"format": "litdata"}, "there is no '.*index.json': a folder of LitData's chunks"),
        (["{in}"], {"format": "litdata"}, "expected an object with chunks and config: .*`config`"),
        (["{in}"], {"format": "mds", "index": "m.json"}, "an index is for shards without an index.json"),
        (["{in}"], {"format": "mds", "block_size": 4}, "block_size .* is for LitData's chunks"),
        (["{in}/*.mds"], {"block_size": 4}, "block_size .* is for LitData's chunks"),
    ],
)
def test_wrong_calls(urls: list[str], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_mds(tmp_path / "in", (2,))
    with pytest.raises(ValueError, match=message):
        al.convert([url.format(**{"in": source}) for url in urls], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
