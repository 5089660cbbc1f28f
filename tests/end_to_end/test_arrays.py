"""Arrays of NumPy through the whole pipeline and the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main
from asyncloader.errors import FormatError

pytestmark = pytest.mark.usefixtures("fork_server")

SIZES = (70, 1, 0, 44)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards of images and labels: the n-th label is n, and the first value of its image."""
    first = 0
    for shard, size in enumerate(SIZES):
        labels = np.arange(first, first + size)
        images = np.repeat(labels, 4 * 3).reshape(size, 4, 3).astype(np.uint8)
        (np.savez_compressed if shard == 3 else np.savez)(
            tmp_path / f"{shard}.npz", image=images, label=labels
        )
        np.save(tmp_path / f"{shard}.npy", np.asfortranarray(images) if shard == 3 else images)
        first += size
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_batches_are_rows_of_all_shards_from_a_server(folder: Path, suffix: str, workers: int) -> None:
    with testing.serve(folder) as server, testing.check_leaks():
        urls = [server.url_of(f"{shard}.{suffix}") for shard in range(len(SIZES))]
        field = "array" if suffix == "npy" else "image"
        recipe = al.from_urls(urls).rename({field: "x"})
        batches = [*al.DataLoader(recipe, 16, num_workers=workers, lanes=2)]
        assert all(batch["x"].shape[1:] == (4, 3) for batch in batches)
        seen = [int(image[0, 0]) for batch in batches for image in batch["x"]]
        assert sorted(seen) == [*range(sum(SIZES))]
        if suffix == "npz":
            assert seen == [int(label) for batch in batches for label in batch["label"]]


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_every_cut_resumes(folder: Path, suffix: str, assert_resumes: Callable[..., None]) -> None:
    columns = ["image"] if suffix == "npz" else None

    def make_loader(workers: int) -> al.DataLoader[Any]:
        recipe = al.from_urls(f"{folder}/*.{suffix}", columns=columns).shuffle(13, seed=2)
        return al.DataLoader(recipe, 8, lanes=2, num_workers=workers)

    assert_resumes(make_loader, workers=(0, 2))


def test_the_commands_know_arrays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    ask("index", f"{folder}/*.np[yz]")
    told = {
        shard["name"]: shard
        for shard in json.loads((folder / "asyncloader-index.json").read_text())["shards"]
    }
    assert [told[f"{shard}.npz"]["samples"] for shard in range(4)] == [*SIZES]
    assert [told[f"{shard}.npy"]["samples"] for shard in range(4)] == [*SIZES]
    loader = al.DataLoader(al.from_urls(f"{folder}/*.npz"), 8, lanes=3)
    assert len(loader) == 15 == len([*loader])
    ask("verify", f"{folder}/*.npz")
    assert "npz" in ask("ls", f"{folder}/0.npz")
    assert "uint8 (4, 3)" in ask("head", f"{folder}/0.npy", "-n", "1")
    assert "label" not in ask("head", f"{folder}/*.npz", "--columns", "image")
    ask("bench", f"{folder}/*.npz", "--seconds", "0.2", "--json")


def test_a_shard_that_was_replaced_is_held_against_its_index(folder: Path) -> None:
    assert main(["index", f"{folder}/*.npy"]) == 0
    out = io.BytesIO()
    np.save(out, np.zeros((35, 24), np.uint8))  # of the same length
    assert len(out.getvalue()) == (folder / "0.npy").stat().st_size
    (folder / "0.npy").write_bytes(out.getvalue())
    with pytest.raises(FormatError, match="the index promises 70 samples of this shard, found 35"):
        [*al.DataLoader(al.from_urls(folder / "0.npy"), 8)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_shard_is_named_or_skipped(folder: Path, workers: int) -> None:
    content = (folder / "0.npy").read_bytes()
    (folder / "0.npy").write_bytes(content[:-30])
    recipe = al.from_urls(f"{folder}/*.npy")
    with pytest.raises(FormatError, match="truncated") as caught:
        [*al.DataLoader(recipe, 8, num_workers=workers, lanes=1)]
    assert (caught.value.shard, caught.value.sample) == (str(folder / "0.npy"), 67)
    loader = al.DataLoader(recipe, 8, num_workers=workers, lanes=1, on_error=al.SkipErrors(max=1))
    assert sum(len(batch["array"]) for batch in loader) == 45
