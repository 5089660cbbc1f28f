"""Damage that no length and no format shows: seen by the index, and told with both values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus, deal_whole, keys_of

import asyncloader as al
from asyncloader import testing
from asyncloader.formats import format_of
from asyncloader.pipeline.dataset import dataset_of, stages_of
from asyncloader.pipeline.shards import Shards
from asyncloader.shards.expectations import Expectations, Expected
from asyncloader.shards.index_lookup import Entries, expectations, find_local_indexes

pytestmark = pytest.mark.usefixtures("fork_server")

# One lane, so that the samples before an error are known.
WORKERS = pytest.mark.parametrize("workers", [0, 1])
SUFFIXES = pytest.mark.parametrize("suffix", ["tar", "jsonl", "tar.gz", "jsonl.zst"])
SHARDS = 4
SAMPLES = 6


def write(folder: Path, suffix: str, salt: int = 0) -> list[str]:
    """Shards whose text can be damaged without their format noticing."""
    with al.ShardWriter(folder / f"s-%d.{suffix}", samples_per_shard=SAMPLES) as writer:
        for number in range(SHARDS * SAMPLES):
            writer.write({"__key__": f"{number:04d}", "txt": f"sample {number + salt:06d} " * 30})
    return [shard.path for shard in writer.shards]


def dataset_with(urls: Sequence[str], checks: Iterable[Expected | None]) -> al.Dataset:
    columns = Expectations.of(checks)
    return dataset_of(Shards(tuple(urls), tuple(map(format_of, urls)), checks=columns))


def error_of(recipe: al.Dataset, kind: type[Exception], workers: int = 0, before: int | None = None) -> Any:
    """The one error of a pass over one lane, after ``before`` samples."""
    delivered = []
    with testing.check_leaks():
        loader = al.DataLoader(recipe, None, num_workers=workers)
        with pytest.raises(kind) as caught:
            for sample in loader:
                delivered.append(sample)
        loader.close()
    if before is not None:
        assert len(delivered) == before
    return caught.value


@pytest.mark.parametrize("workers", [0, 2])
@SUFFIXES
def test_sound_shards_are_delivered_exactly_once(suffix: str, workers: int, tmp_path: Path) -> None:
    urls = write(tmp_path, suffix)
    checks = find_local_indexes(urls)
    assert len(checks) == SHARDS and all(checks)
    loader = al.DataLoader(dataset_with(urls, checks), 4, num_workers=workers)
    for _ in range(2):
        assert sorted(keys_of(loader)) == [f"{number:04d}" for number in range(SHARDS * SAMPLES)]
    loader.close()


@WORKERS
@pytest.mark.parametrize("suffix", ["tar", "jsonl"])
def test_a_flipped_bit_on_the_way_is_an_error_that_names_both_digests(
    suffix: str, workers: int, tmp_path: Path
) -> None:
    paths = write(tmp_path, suffix)
    damaged = Path(paths[1]).name
    place = Path(paths[1]).read_bytes().index(b"sample ") + 1
    with testing.serve(tmp_path, [testing.FlipBit(place, 1, key=damaged)]) as server:
        urls = [f"{server.url_of(Path(path).name)}?signature=SENTINEL" for path in paths]
        content = (tmp_path / "asyncloader-index.json").read_bytes()
        checks = expectations(urls, Entries(f"{server.url}/asyncloader-index.json", content))
        error = error_of(dataset_with(urls, checks), al.StoreError, workers)
        assert error.shard == server.url_of(damaged)
        assert checks[1].crc32c is not None and f"but {checks[1].crc32c.hex()} was promised" in str(error)
        assert "SENTINEL" not in str(error)
        unchecked = al.DataLoader(dataset_with(urls, ()), None)
        assert len(list(unchecked)) == SHARDS * SAMPLES, "nobody else would notice"


@WORKERS
def test_lines_cut_from_a_file_are_seen_before_its_first_sample(workers: int, tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    lines = Path(urls[2]).read_bytes().splitlines(keepends=True)
    Path(urls[2]).write_bytes(b"".join(lines[:-1]))
    recipe = dataset_with(urls, find_local_indexes(urls))
    error = error_of(recipe, al.StoreError, workers, before=2 * SAMPLES)
    assert error.shard == urls[2]
    size = len(b"".join(lines))
    assert f"promises {size} bytes of this shard, found {size - len(lines[-1])}; restore" in str(error)


def test_an_emptied_file_is_seen(tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    Path(urls[0]).write_bytes(b"")
    error = error_of(dataset_with(urls, find_local_indexes(urls)), al.StoreError, before=0)
    assert "found 0" in str(error)


@WORKERS
@SUFFIXES
def test_another_number_of_samples_is_an_error(suffix: str, workers: int, tmp_path: Path) -> None:
    urls = write(tmp_path, suffix)
    checks = tuple(
        Expected(check.size_bytes, SAMPLES + 1, check.sha256)
        for check in find_local_indexes(urls)
        if check is not None
    )
    error = error_of(dataset_with(urls, checks), al.FormatError, workers, before=SAMPLES)
    assert error.shard == urls[0]
    assert f"promises {SAMPLES + 1} samples of this shard, found {SAMPLES}; restore" in str(error)


def test_operators_do_not_change_the_number_that_is_checked(tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    recipe = dataset_with(urls, find_local_indexes(urls)).shuffle(5).filter(lambda sample: False)
    with pytest.warns(UserWarning, match="an epoch had no batch"):
        assert list(al.DataLoader(recipe, None)) == []
    assert len(list(al.DataLoader(dataset_with(urls, find_local_indexes(urls)).take(3), None))) == 3


def test_a_shard_that_a_found_index_does_not_know_is_read_unchecked(tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text('{"__key__": "x", "txt": "x"}\n')
    checks = find_local_indexes([*urls, str(other)])
    assert checks[-1] is None
    assert len(list(al.DataLoader(dataset_with([*urls, str(other)], checks), None))) == SHARDS * SAMPLES + 1


def test_a_digest_that_cannot_be_computed_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (url,) = write(tmp_path, "jsonl")[:1]
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    recipe = dataset_with([url], (Expected(Path(url).stat().st_size, crc32c=bytes(4)),))
    error = error_of(recipe, ImportError, before=0)
    assert "pip install asyncloader[checksums]" in str(error)


@pytest.mark.parametrize("suffix", ["tar", "jsonl.gz"])
def test_a_run_resumes_after_every_batch_with_its_checks(
    suffix: str, make_corpus: Callable[..., Corpus], assert_resumes: Callable[..., None]
) -> None:
    corpus = make_corpus(suffix)
    checks = find_local_indexes(corpus.paths)
    assert any(checks)
    fields = ("key", "number") if "jsonl" in suffix else ("__key__", "cls")

    def make_loader(workers: int) -> al.DataLoader[Any]:
        recipe = dataset_with(corpus.paths, checks).select_columns(*fields)
        return al.DataLoader(recipe, 4, num_workers=workers, lanes=2)

    assert_resumes(make_loader, workers=(0, 1))


# --- the state's identity ---


def state_after(recipe: al.Dataset, batches: int = 3) -> dict[str, Any]:
    loader = al.DataLoader(recipe, 2)
    for count, _ in enumerate(loader, 1):
        if count == batches:
            break
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return state


def test_shards_rewritten_under_their_names_refuse_the_old_state(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = write(tmp_path / "old", "jsonl"), write(tmp_path / "new", "jsonl", salt=1)
    before, after = find_local_indexes(old), find_local_indexes(new)
    state = state_after(dataset_with(old, before))
    with pytest.raises(
        ValueError,
        match=re.compile("saved by another loader.*index: the contents of the shards differ", re.DOTALL),
    ):
        al.DataLoader(dataset_with(old, after), 2).load_state_dict(state)
    resumed = al.DataLoader(dataset_with(old, before), 2)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == SHARDS * SAMPLES // 2 - 3


def test_a_state_saved_without_an_index_goes_on_with_one_but_not_the_other_way(tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    deal_whole(tmp_path)
    checks = find_local_indexes(urls)
    without, with_checks = dataset_with(urls, ()), dataset_with(urls, checks)
    loader = al.DataLoader(with_checks, 2)
    loader.load_state_dict(state_after(without))
    assert len(list(loader)) == SHARDS * SAMPLES // 2 - 3
    with pytest.raises(ValueError, match=r"index: .* was known then and is not now; name it with index="):
        al.DataLoader(without, 2).load_state_dict(state_after(with_checks))


def test_an_index_that_gains_another_digest_is_of_the_same_shards(tmp_path: Path) -> None:
    urls = write(tmp_path, "jsonl")
    deal_whole(tmp_path)
    checks = find_local_indexes(urls)
    fewer = tuple(check and Expected(check.size_bytes, None, check.sha256) for check in checks)
    assert stages_of(dataset_with(urls, checks)).describe() == stages_of(dataset_with(urls, fewer)).describe()
    assert "contents_sha256" not in stages_of(dataset_with(urls, ())).describe()
