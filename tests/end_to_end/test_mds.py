"""Data sets that MosaicML's streaming has written, sample for sample as it reads them itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converting.corpora import plain
from peer_programs import run_peer

import asyncloader as al
from asyncloader import testing
from asyncloader.formats.images import encoded

from .conftest import Place
from .mds_writer import COMPRESSIONS, ENCODINGS, LITTLE, described

pytestmark = pytest.mark.usefixtures("fork_server")

PACKED = [f"packed-{number}" for number in range(len(COMPRESSIONS))]


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data sets that ``mds_writer`` makes, with what streaming reads of them."""
    folder = tmp_path_factory.mktemp("mds")
    run_peer(Path(__file__).with_name("mds_writer.py"), folder)
    return folder


@pytest.fixture(scope="session")
def expected(sets: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads((sets / "expected.json").read_text())
    return found


@pytest.fixture
def little(sets: Path, tmp_path: Path) -> Path:
    """A data set of five small shards with a sha256 of each, to be damaged."""
    return Path(shutil.copytree(sets / "parts/train", tmp_path / "little"))


def as_described(samples: list[Any]) -> list[Any]:
    """A collate function whose batches are those of ``expected``."""
    return [json.loads(json.dumps(described(sample))) for sample in samples]


def loader_of(recipe: al.Dataset, workers: int = 0, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(recipe, 4, collate_fn=as_described, num_workers=workers, **options)


def drained(recipe: al.Dataset, **options: Any) -> list[Any]:
    return [sample for batch in loader_of(recipe, **options) for sample in batch]


@pytest.fixture
def places(
    sets: Path, request: pytest.FixtureRequest
) -> Callable[[str], Callable[[str], tuple[str, dict[str, Any]]]]:
    """Where a data set is, and how it is reached: on disk, behind HTTP, on S3."""

    def place(kind: str) -> Callable[[str], tuple[str, dict[str, Any]]]:
        def on_disk(name: str) -> tuple[str, dict[str, Any]]:
            return str(sets / name), {}

        def on_http(name: str) -> tuple[str, dict[str, Any]]:
            server = request.getfixturevalue("mds_server")
            return f"{server.url}/{name}", {}

        def on_s3(name: str) -> tuple[str, dict[str, Any]]:
            moto: Place = request.getfixturevalue("moto")
            for file in sorted((sets / name).iterdir()):
                moto.put(f"{name}/{file.name}", file.read_bytes())
            return f"{moto.url}{name}", {"storage_options": moto.options}

        return {"disk": on_disk, "http": on_http, "s3": on_s3}[kind]

    return place


@pytest.fixture(scope="session")
def mds_server(sets: Path) -> Any:
    with testing.serve(sets) as server:
        yield server


@pytest.mark.parametrize(
    ("place", "workers"),
    [
        ("disk", 2),
        ("http", 0),
        pytest.param("s3", 2, marks=pytest.mark.servers),
        pytest.param("disk", 0, marks=pytest.mark.slow),
        pytest.param("http", 2, marks=pytest.mark.slow),
        pytest.param("s3", 0, marks=pytest.mark.slow),
    ],
)
def test_every_encoding_is_what_streaming_reads_and_every_fifth_batch_resumes(
    places: Any, expected: dict[str, list[Any]], place: str, workers: int
) -> None:
    url, options = places(place)("every")
    recipe = al.from_mds(url, **options)
    # The runtime below the client of object stores stays with the process.
    with testing.check_leaks(allow=lambda left: place == "s3" and "event" in left):
        batches, states = [], []
        with loader_of(recipe, workers, lanes=2) as loader:
            assert len(loader) == 16
            for batch in loader:
                batches.append(batch)
                states.append(json.dumps(loader.state_dict()))
        came = [sample for batch in batches for sample in batch]
        order = {
            json.dumps(sample, sort_keys=True): number for number, sample in enumerate(expected["every"])
        }
        assert sorted(order[json.dumps(sample, sort_keys=True)] for sample in came) == list(range(60))
        assert [*came[0]] == sorted(ENCODINGS)
        for delivered in range(5, 16, 5):
            with loader_of(recipe, workers, lanes=2) as again:
                again.load_state_dict(json.loads(states[delivered - 1]))
                assert [*again] == batches[delivered:]


@pytest.mark.parametrize("name", PACKED)
def test_every_compression_is_read_and_resumed(sets: Path, expected: dict[str, list[Any]], name: str) -> None:
    recipe = al.from_mds(sets / name)
    assert drained(recipe) == expected[name]
    with loader_of(recipe) as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
        batches.close()
    with loader_of(recipe) as loader:
        loader.load_state_dict(state)
        assert [sample for batch in loader for sample in batch] == expected[name][28:]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["http", "s3"])
@pytest.mark.parametrize("name", PACKED)
def test_every_compression_is_read_from_servers(
    places: Any, expected: dict[str, list[Any]], name: str, place: str
) -> None:
    url, options = places(place)(name)
    assert drained(al.from_mds(url, **options), workers=2, lanes=1) == expected[name]


def test_splits_and_several_roots_are_recipes_like_any_other(
    sets: Path, expected: dict[str, list[Any]]
) -> None:
    train = al.from_mds(sets / "parts", split="train")
    both = al.concat([train, al.from_mds(f"{sets}/parts/val/")])
    assert drained(both) == expected["parts/train"] + expected["parts/val"]
    mixed = drained(al.mix([train, al.from_mds(sets / "parts", split="val")], seed=0, stop="all"))
    key = json.dumps
    assert sorted(map(key, mixed)) == sorted(map(key, [*expected["parts/train"], *expected["parts/val"]]))


def test_chosen_columns_alone_become_fields_and_a_pickle_that_is_not_chosen_is_left(
    sets: Path, expected: dict[str, list[Any]]
) -> None:
    found = drained(al.from_mds(sets / "every", columns=["str", "int8"]))
    assert [[*row.items()] for row in found] == [
        [("str", row["str"]), ("int8", row["int8"])] for row in expected["every"]
    ]
    loader = al.DataLoader(al.from_mds(sets / "pickles", columns=["u"]), None)
    assert [sample["u"] for sample in loader] == [*range(60)]
    with pytest.raises(al.FormatError, match="a pickle may run any code") as caught:
        al.from_mds(sets / "pickles")
    assert caught.value.shard == str(sets / "pickles/index.json")
    with pytest.raises(al.FormatError, match="did you mean 'text'") as caught:
        al.from_mds(sets / "parts/val", columns=["texts"])


def test_images_that_are_not_decoded_are_the_bytes_of_their_files(sets: Path) -> None:
    opened = al.from_mds(sets / "every").head(60)
    kept = al.from_mds(sets / "every", decode=False).head(60)
    files = [name for name, kind in ENCODINGS.items() if "jpeg" in kind or "png" in kind]
    assert len(files) == 7
    for with_images, with_files in zip(opened, kept, strict=True):
        images = {name: _opened(with_files[name]) for name in files}
        assert as_described([with_files | images]) == as_described([with_images])


@pytest.mark.parametrize("name", ["every", "parts/train", PACKED[0], PACKED[-1]])
def test_they_are_converted_by_their_index(sets: Path, name: str, tmp_path: Path) -> None:
    # But for what Parquet has no type for: images of pixels alone, integers of any size, values of any shape.
    refused = ("pil", "list_pil", "str_int", "str_decimal", "json", "ndarray_any", "ndarray_dtype")
    columns = [each for each in (ENCODINGS if name == "every" else LITTLE) if each not in refused]
    options: dict[str, Any] = {"format": "mds", "to": "parquet", "columns": columns, "samples_per_shard": 7}
    done = al.convert(sets / name, tmp_path / "out", num_workers=0, **options)
    assert (done.samples, done.shards) == (60, 9)
    found = al.from_urls(f"{tmp_path}/out/").head(60)
    kept = al.from_mds(sets / name, columns=columns, decode=False).head(60)
    assert [*map(plain, found)] == [*map(plain, kept)]


def _opened(files: bytes | list[bytes]) -> Any:
    return [*map(_opened, files)] if isinstance(files, list) else encoded(files)


def test_columns_become_tensors_without_a_row_for_each_sample(
    sets: Path, expected: dict[str, list[Any]]
) -> None:
    recipe = al.from_mds(sets / "parts/val")
    (batch,) = al.DataLoader(recipe, 60, collate_fn=al.Pad({"ids": 0}))
    lengths = [shape[0] for _, _, shape, _ in (row["ids"] for row in expected["parts/val"])]
    assert batch["ids"].dtype == torch.int32 and batch["ids"].shape == (60, max(lengths))
    assert batch["ids_lengths"].tolist() == lengths and batch["n"].tolist() == [*range(60)]
    kept = recipe.map_batches(_sums, batch_size=20)
    assert len([*al.DataLoader(kept, None)]) == 60


def _sums(columns: Any) -> Any:
    assert isinstance(columns["ids"], al.Ragged)
    return {"sum": np.array([ids.sum() for ids in columns["ids"]])}


def test_ranks_and_lanes_are_cut_equal_to_the_sample(sets: Path) -> None:
    recipe = al.from_mds(sets / "packed-7")
    counts = []
    for rank in range(4):
        with al.DataLoader(recipe.select_columns("n"), 5, rank=rank, world_size=4) as loader:
            counts.append((len(loader), sum(len(batch["n"]) for batch in loader)))
    assert counts == [(3, 15)] * 4


def test_a_resumed_position_reads_only_what_is_behind_it(sets: Path, mds_server: testing.Server) -> None:
    recipe = al.from_mds(f"{mds_server.url}/parts/val", columns=["n"])
    with al.DataLoader(recipe, 6) as loader:
        batches = iter(loader)
        for _ in range(9):
            next(batches)
        state = loader.state_dict()
        batches.close()
    sent = mds_server.counters.bytes_sent
    with al.DataLoader(recipe, 6) as loader:
        loader.load_state_dict(state)
        assert [batch["n"].tolist() for batch in loader] == [[*range(54, 60)]]
    size = (sets / "parts/val/shard.00000.mds").stat().st_size
    assert mds_server.counters.bytes_sent - sent < size + 10_000  # the table, and a tenth of the samples


def test_a_raw_file_is_taken_where_it_lies_beside_or_in_place_of_the_compressed_one(
    sets: Path, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    name = PACKED[COMPRESSIONS.index("zstd")]
    local = next(
        folder
        for folder in sets.glob("local-*")
        if json.loads((folder / "index.json").read_text())
        == json.loads((sets / name / "index.json").read_text())
    )  # where streaming has decompressed them
    both = Path(shutil.copytree(sets / name, tmp_path / "both"))
    for number in (0, 3):
        shutil.copy(local / f"shard.0000{number}.mds", both)
    recipe = al.from_mds(both)
    assert "mds.zstd" in repr(recipe) and "2 mds" in repr(recipe)
    assert drained(recipe) == expected[name]
    assert drained(al.from_mds(local)) == expected[name]


def test_the_digest_that_an_index_has_is_verified_where_a_whole_shard_is_read(little: Path) -> None:
    shard = little / "shard.00002.mds"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1  # of a text, which decodes all the same
    shard.write_bytes(content)
    with pytest.raises(al.StoreError, match="sha256") as caught:
        drained(al.from_mds(little))
    assert caught.value.shard == str(shard)
    index = json.loads((little / "index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"]["hashes"] = {}
    (little / "index.json").write_text(json.dumps(index))
    assert len(drained(al.from_mds(little))) == 60
    for algorithm in ("md5", "xxh64", "blake2b"):
        entry = index["shards"][2]["raw_data"]
        entry["hashes"] = {"of the future": "00", algorithm: hashlib.md5(b"").hexdigest()}
        (little / "index.json").write_text(json.dumps(index))
        with pytest.raises(al.StoreError, match=algorithm):
            drained(al.from_mds(little))


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda entry: entry.update(samples=entry["samples"] + 1), al.FormatError, "index.json promises"),
        (lambda entry: entry.update(samples=entry["samples"] - 1), al.FormatError, "index.json promises"),
        (lambda entry: entry["raw_data"].update(bytes=1 << 50), al.StoreError, "index.json promises"),
        (lambda entry: entry.update(samples=(1 << 32) - 1), al.FormatError, "index.json promises"),
    ],
)
def test_an_index_that_lies_of_a_shard_is_found_out(
    little: Path, change: Callable[[Any], None], error: type[Exception], what: str
) -> None:
    index = json.loads((little / "index.json").read_text())
    change(index["shards"][1])
    (little / "index.json").write_text(json.dumps(index))
    recipe = al.from_mds(little)
    with pytest.raises(error, match=what):
        drained(recipe)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda index: index.update(version=1), "version: expected 2, found 1"),
        (lambda index: index["shards"][0].update(version=3), "shards"),
        (lambda index: index["shards"][0].update(format="zip"), "expected 'mds', found 'zip'"),
        (lambda index: index["shards"][0].update(samples=-1), r">= 0 - at `\$\.shards\[0\]\.samples`"),
        (lambda index: index["shards"][0].update(samples=1 << 32), r"<= 4294967295 .*samples"),
        (lambda index: index["shards"][0]["raw_data"].update(bytes=1 << 63), r"<= .*raw_data\.bytes"),
        (lambda index: index["shards"][0].update(samples="5"), "expected the index.json of MDS"),
        (lambda index: index["shards"][0].update(raw_data=None), "found neither"),
        (lambda index: index["shards"][0]["raw_data"].update(basename="../x.mds"), "below its own folder"),
        (lambda index: index["shards"][0]["raw_data"].update(basename="/etc/passwd"), "below its own folder"),
        (lambda index: index["shards"][0]["raw_data"].update(hashes={"md5": "zz"}), "hexadecimal"),
        (lambda index: index["shards"][0]["raw_data"].update(hashes={"md5": "00" * 9999}), "hexadecimal"),
        (lambda index: index["shards"][0]["raw_data"].update(bytes=-1), r">= 0 .*raw_data\.bytes"),
        (lambda index: index["shards"][0].update(column_names=["a"]), "sizes of columns differ"),
        (
            lambda index: index["shards"][0].update(raw_data=None, zip_data={"basename": "a", "bytes": 1}),
            "compression",
        ),
        (lambda index: index["shards"].clear(), "no shard"),
    ],
)
def test_an_index_that_is_not_sound_is_refused(
    little: Path, change: Callable[[Any], None], what: str
) -> None:
    index = json.loads((little / "index.json").read_text())
    change(index)
    (little / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=what):  # FormatError is one
        al.from_mds(little)


def test_shards_of_text_and_folders_without_an_index_say_what_to_do(
    sets: Path, tmp_path: Path, mds_server: testing.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(al.FormatError, match="format='jsonl'"):
        al.from_mds(sets / "json")
    with pytest.raises(al.FormatError, match=r"format='csv'\)"):
        al.from_mds(sets / "csv")
    index = json.loads((sets / "csv/index.json").read_text())
    for format, separator, advice in (
        ("tsv", None, r"format='tsv'\)"),
        ("xsv", "\t", r"format='csv', delimiter='\\t'\)"),
        ("xsv", "::", "separated by '::', but a separator must be one character"),
    ):
        for shard in index["shards"]:
            shard.update(format=format, separator=separator)
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(al.FormatError, match=advice):
            al.from_mds(tmp_path)
    with pytest.raises(ValueError, match="split="):
        al.from_mds(sets / "parts")
    with pytest.raises(al.StoreError) as caught:
        al.from_mds(f"{mds_server.url}/parts")
    assert "split=" in caught.value.__notes__[0]
    (tmp_path / "index.json").write_text("[")
    with pytest.raises(al.FormatError, match=r"expected the index\.json of MDS"):
        al.from_mds(tmp_path)
    for wrong in (3, b"x", None):
        with pytest.raises(TypeError, match="root should be"):
            al.from_mds(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="split should name a folder below"):
        al.from_mds(tmp_path, split="../x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, r"index\.json should be a file"),
        (os.mkdir, r"index\.json should be a file"),
        (lambda path: os.symlink(path, path), r"index\.json should be a file"),
    ],
)
def test_an_index_that_is_there_and_no_file_is_told_as_such(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "index.json")
    with pytest.raises(al.StoreError, match=message):
        al.from_mds(tmp_path)


def test_what_is_damaged_raises_wherever_it_is_and_never_ends_early(little: Path) -> None:
    index = json.loads((little / "index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"]["hashes"] = {}
    (little / "index.json").write_text(json.dumps(index))
    shard = little / "shard.00001.mds"
    content = shard.read_bytes()
    for length in (0, 3, 100, len(content) - 1):
        shard.write_bytes(content[:length])
        with pytest.raises(al.StoreError, match=r"index\.json promises"):
            drained(al.from_mds(little))
    for at in (0, 4, 9, 60):
        shard.write_bytes(content[:at] + b"\xff\xff\xff" + content[at + 3 :])
        with pytest.raises(al.FormatError) as caught:
            drained(al.from_mds(little))
        assert caught.value.shard == str(shard)


def test_a_shard_that_is_damaged_and_a_sample_that_does_not_decode_are_skipped_within_a_budget(
    little: Path, expected: dict[str, list[Any]]
) -> None:
    index = json.loads((little / "index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"]["hashes"] = {}
    (little / "index.json").write_text(json.dumps(index))
    shard = little / "shard.00001.mds"
    text = b"sample 30"
    content = shard.read_bytes()
    assert content.count(text) == 1
    shard.write_bytes(content.replace(text, b"\xff" * len(text)))
    skipped = drained(al.from_mds(little), on_error=al.SkipErrors(max=1))
    assert skipped == [row for row in expected["parts/train"] if row["n"] != ["int", "30"]]


def test_a_cache_keeps_the_shards_of_a_server(
    sets: Path, expected: dict[str, list[Any]], tmp_path: Path, mds_server: testing.Server
) -> None:
    recipe = al.from_mds(f"{mds_server.url}/parts/train", cache_dir=tmp_path / "cache")
    assert drained(recipe) == expected["parts/train"]
    sent = mds_server.counters.bytes_sent
    assert drained(recipe) == expected["parts/train"]
    assert mds_server.counters.bytes_sent == sent
