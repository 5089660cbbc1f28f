"""What comes out is what went in: of any format, in any format, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncloader as al

from .corpora import FORMATS, SAMPLES, counts_of, files_of, plain, record, samples_of, write_corpus

TARGETS = ("tar", "jsonl", "parquet")
# JSON has neither times nor bytes.
_OF_TABLES = ["id", "text", "vector", "matrix"]
_OF_ARRAYS = ["id", "text", "vector"]
KEPT_BY_JSON = {"parquet": _OF_TABLES, "arrow": _OF_TABLES, "npy": _OF_ARRAYS, "npz": _OF_ARRAYS,
                "tar": ["txt", "cls", "json"], "tar.gz": ["txt", "cls", "json"]}  # fmt: skip
KEPT_BY_TAR = {"parquet": ["raw", *_OF_TABLES], "arrow": ["raw", *_OF_TABLES],
               "npy": ["raw", *_OF_ARRAYS], "npz": ["raw", *_OF_ARRAYS]}  # fmt: skip


def normal(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of a decoded tar with the fields that stand together there beside the others."""
    sample = {name.removesuffix(".npy"): value for name, value in sample.items() if name != "__key__"}
    others = sample.pop("json", {})
    return {name: plain(value) for name, value in sorted({**sample, **others}.items())}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_value_comes_through(kind: str, to: str, tmp_path: Path) -> None:
    urls = write_corpus(kind, tmp_path / "in")
    kept = KEPT_BY_JSON if to.startswith("jsonl") else KEPT_BY_TAR if to.startswith("tar") else {}
    done = al.convert(
        urls, tmp_path / "out", to=to, samples_per_shard=17, columns=kept.get(kind), num_workers=0
    )
    assert (done.samples, done.shards, done.made) == (SAMPLES, 4, 4)
    assert counts_of(tmp_path / "out") == [15, 15, 15, 15]
    recipe = al.from_urls(str(tmp_path / "out") + "/")
    found = [normal(sample) for sample in recipe.decode().head(SAMPLES + 1)]
    expected = [normal(sample) for sample in al.from_urls(urls).decode().head(SAMPLES)]
    for sample in expected:
        sample.pop("__url__", None)
        for name in {*sample} - {*kept.get(kind, sample)} - {*record(0)}:
            del sample[name]
    for sample in found:
        sample.pop("__url__", None)
        if to == "parquet":  # has a null where there was nothing
            assert sample.keys() == expected[0].keys()
    assert found == expected


@pytest.mark.parametrize("through", ["parquet", "tar.zst", "jsonl.xz"])
def test_there_and_back_is_the_same(through: str, tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    al.convert(urls, tmp_path / "there", to=through, num_workers=0)
    al.convert(str(tmp_path / "there") + "/", tmp_path / "back", to="jsonl", num_workers=0)
    found = samples_of(str(tmp_path / "back") + "/")
    expected = samples_of(urls)
    assert found == ([{"__key__": f"{number:09d}", "json": sample} for number, sample in enumerate(expected)]
                     if through.startswith("tar") else expected)  # fmt: skip


def test_a_tar_keeps_its_keys_and_bytes_through_parquet(tmp_path: Path) -> None:
    urls = write_corpus("tar", tmp_path / "in")
    al.convert(urls, tmp_path / "there", to="parquet", num_workers=0)
    al.convert(str(tmp_path / "there") + "/", tmp_path / "back", num_workers=0)
    assert samples_of(str(tmp_path / "back") + "/") == samples_of(urls)


def test_types_of_columns_stay_what_they_were(tmp_path: Path) -> None:
    urls = write_corpus("arrow", tmp_path / "in")
    al.convert(urls, tmp_path / "out", to="parquet", num_workers=0)
    found = samples_of(str(tmp_path / "out") + "/")
    assert [type(found[5][name]) for name in ("id", "raw", "text", "when")] == [
        np.int32, bytes, str, np.datetime64
    ]  # fmt: skip
    assert (found[5]["vector"].dtype, found[3]["text"]) == (np.float32, None)


def test_the_text_of_csv_becomes_what_types_say(tmp_path: Path) -> None:
    urls = write_corpus("csv", tmp_path / "in")
    al.convert(urls, tmp_path / "out", to="parquet", types={"id": "int"}, num_workers=0)
    found = samples_of(str(tmp_path / "out") + "/")
    assert [sample["id"] for sample in found] == [*range(SAMPLES)]
    assert isinstance(found[0]["id"], np.int64)
    al.convert(urls, tmp_path / "lines", to="jsonl", columns=["id"], types={"id": "float"}, num_workers=0)
    assert samples_of(str(tmp_path / "lines") + "/")[3] == {"id": 3.0}


def test_decoded_fields_are_columns_of_their_types(tmp_path: Path) -> None:
    urls = write_corpus("tar", tmp_path / "in")
    al.convert(urls, tmp_path / "out", to="parquet", decode=True, num_workers=0)
    sample = plain(samples_of(str(tmp_path / "out") + "/")[3])
    assert sample == {"__key__": "a/00003", "json": record(3), "txt": "text 3", "cls": 3, "bin": b"\3\3\3"}


@pytest.mark.parametrize("to", ["tar", "tar.gz", "jsonl.zst", "parquet"])
def test_any_number_of_workers_writes_the_same_bytes(to: str, tmp_path: Path) -> None:
    urls = write_corpus("jsonl.zst", tmp_path / "in", samples=400)
    written = []
    for workers in (0, 1, 3):
        out = tmp_path / str(workers)
        al.convert(urls, out, to=to, samples_per_shard=23, num_workers=workers)
        written.append(files_of(out))
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 19


def test_shards_are_about_as_large_as_was_asked(tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in", samples=4000)
    al.convert(urls, tmp_path / "out", to="jsonl", shard_size="40kB", num_workers=0)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.jsonl")]
    assert len(sizes) > 5
    assert all(25_000 < size < 55_000 for size in sizes), sizes
    counts = counts_of(tmp_path / "out")
    assert max(counts) - min(counts) <= 1


def test_no_samples_are_no_shards(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    done = al.convert(tmp_path / "a.jsonl", tmp_path / "out", num_workers=2)
    assert (done.samples, done.shards) == (0, 0)
    assert [*files_of(tmp_path / "out")] == ["asyncloader-index.json"]


def test_what_was_written_is_an_index(tmp_path: Path, no_leaks: None) -> None:
    al.convert(write_corpus("jsonl", tmp_path / "in"), tmp_path / "out", samples_per_shard=9, num_workers=2)
    loader = al.DataLoader(al.from_urls(str(tmp_path / "out") + "/"), batch_size=7)
    assert len(loader) == 9


@pytest.mark.parametrize("kind", ["tar", "jsonl.zst", "parquet", "text"])
def test_a_seed_shuffles_all_samples_over_all_shards(kind: str, tmp_path: Path, no_leaks: None) -> None:
    urls = write_corpus(kind, tmp_path / "in", samples=600)
    for workers in (0, 2):
        done = al.convert(
            urls, tmp_path / str(workers), to="parquet", samples_per_shard=100, shuffle=5, num_workers=workers
        )
        assert (done.samples, done.shards, done.shuffle) == (600, 6, 5)
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")
    al.convert(urls, tmp_path / "kept", to="parquet", samples_per_shard=100, num_workers=0)
    kept = [repr(plain(sample)) for sample in samples_of(f"{tmp_path}/kept/")]
    number_of = {sample: number for number, sample in enumerate(kept)}
    found = [number_of[repr(plain(sample))] for sample in samples_of(f"{tmp_path}/0/")]
    assert sorted(found) == [*range(600)]
    for first in range(0, 600, 100):  # each shard has some of each sixth of the sources
        assert {number // 100 for number in found[first : first + 100]} == {*range(6)}


def test_a_shuffled_run_that_was_ended_goes_on_to_the_same_shards(tmp_path: Path) -> None:
    urls = write_corpus("jsonl.zst", tmp_path / "in", samples=600)
    options: dict[str, Any] = {"to": "jsonl", "samples_per_shard": 100, "shuffle": 1, "num_workers": 0}
    al.convert(urls, tmp_path / "out", **options)
    expected = files_of(tmp_path / "out")
    for number in (0, 4):
        (tmp_path / f"out/shard-{number:05d}.jsonl").unlink()
    assert al.convert(urls, tmp_path / "out", **options).made == 2
    assert files_of(tmp_path / "out") == expected
    assert al.convert(urls, tmp_path / "out", **options).made == 0
    with pytest.raises(ValueError, match="was made with shuffle=1, and is now to be made with 2"):
        al.convert(urls, tmp_path / "out", **{**options, "shuffle": 2})


def test_a_value_of_a_shuffled_source_that_cannot_be_kept_is_found(tmp_path: Path) -> None:
    lines = ['{"n": "1"}\n'] * 1000
    lines[900] = '{"n": "late"}\n'
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with pytest.raises(ValueError) as caught:
        al.convert(
            tmp_path / "a.jsonl", tmp_path / "out", to="jsonl", types={"n": "int"}, shuffle=0, num_workers=0
        )
    assert any("a.jsonl" in note and "900" in note for note in caught.value.__notes__), caught.value.__notes__
