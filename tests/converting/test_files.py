"""A folder of files becomes shards: what is a sample, what is a field, and what is refused."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al

from .corpora import counts_of, files_of, samples_of


def make(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Samples in folders, whose names sort between each other's."""
    files = {
        f"{kind}/{number:03d}.JPG": bytes([number]) * 900 for kind in ("dog", "cat") for number in range(9)
    }
    files |= {f"cat/{number:03d}.txt": b"a cat" for number in range(9)}
    files |= {"cat/x/1.seg.png": b"1", "cat/x.y/1.png": b"2", ".git/config": b"3", "dog/.DS_Store": b"4"}
    return make(tmp_path / "in", files)


def test_files_of_one_base_name_are_a_sample(pictures: Path, tmp_path: Path) -> None:
    done = al.convert(pictures, tmp_path / "out", shuffle=False, num_workers=0)
    found = samples_of(str(tmp_path / "out") + "/")
    assert (done.samples, done.hidden_files, done.source_bytes) == (20, 2, 18 * 900 + 9 * 5 + 2)
    assert found[2] == {"__key__": "cat/002", "jpg": bytes([2]) * 900, "txt": b"a cat"}
    assert found[9:11] == [{"__key__": "cat/x.y/1", "png": b"2"}, {"__key__": "cat/x/1", "seg.png": b"1"}]
    assert found[11] == {"__key__": "dog/000", "jpg": bytes(900)}


def test_folders_are_classes_if_asked(pictures: Path, tmp_path: Path) -> None:
    al.convert(pictures, tmp_path / "out", labels=True, num_workers=0)
    found = al.from_urls(str(tmp_path / "out") + "/").decode({"jpg": bytes, "png": bytes}).head(99)
    assert {(sample["cls"], sample["label.txt"]) for sample in found} == {(0, "cat"), (1, "dog")}
    assert all(sample["__key__"].startswith(sample["label.txt"]) for sample in found)


def test_classes_are_mixed_over_the_shards(tmp_path: Path) -> None:
    files = {f"{kind}/{number:03d}.txt": b"x" * 50 for kind in "abcd" for number in range(64)}
    folder = make(tmp_path / "in", files)
    done = al.convert(folder, tmp_path / "out", labels=True, samples_per_shard=32, num_workers=0)
    assert (done.samples, done.shards, done.shuffle) == (256, 8, 0)
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        counts = Counter(sample["label.txt"] for sample in samples_of(shard))
        assert len(counts) == 4 and max(counts.values()) < 20, counts
    keys = [sample["__key__"] for sample in samples_of(f"{tmp_path}/out/")]
    assert sorted(keys) == sorted(name.removesuffix(".txt") for name in files)


def test_the_seed_draws_the_order_for_any_number_of_workers(pictures: Path, tmp_path: Path) -> None:
    al.convert(pictures, tmp_path / "default", samples_per_shard=7, num_workers=2)
    for name, seed in {"zero": 0, "one": 1, "kept": False}.items():
        al.convert(pictures, tmp_path / name, samples_per_shard=7, shuffle=seed, num_workers=0)
    assert files_of(tmp_path / "default") == files_of(tmp_path / "zero")
    orders = {name: [sample["__key__"] for sample in samples_of(f"{tmp_path / name}/")]
              for name in ("zero", "one", "kept")}  # fmt: skip
    assert orders["kept"] == sorted(orders["kept"])
    assert len({tuple(keys) for keys in orders.values()}) == 3
    assert [sorted(keys) for keys in orders.values()] == [orders["kept"]] * 3
    with pytest.raises(ValueError, match="was made with shuffle=1, and is now to be made with None"):
        al.convert(pictures, tmp_path / "one", samples_per_shard=7, shuffle=False, num_workers=0)


@pytest.mark.parametrize("shuffle", [True, 0.5, "0"])
def test_a_seed_is_a_whole_number(shuffle: Any, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="shuffle should be a seed, a whole number, or False"):
        al.convert(pictures, tmp_path / "out", shuffle=shuffle)
    assert not (tmp_path / "out").exists()


def test_shards_hold_what_fits_whoever_makes_them(pictures: Path, tmp_path: Path) -> None:
    for workers in (0, 2):
        done = al.convert(pictures, tmp_path / str(workers), shard_size=3000, num_workers=workers)
        assert done.samples == 20
    assert sum(counts_of(tmp_path / "0")) == 20
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")
    al.convert(pictures, tmp_path / "sorted", shard_size=3000, shuffle=False, num_workers=0)
    assert counts_of(tmp_path / "sorted") == [3, 3, 5, 3, 3, 3]
    al.convert(pictures, tmp_path / "few", samples_per_shard=7, num_workers=0)
    assert counts_of(tmp_path / "few") == [7, 7, 6]


def test_files_become_columns_and_values(pictures: Path, tmp_path: Path) -> None:
    make(pictures, {f"dog/{number:03d}.json": b'{"n": %d}' % number for number in range(9)})
    al.convert(pictures / "dog", tmp_path / "table", to="parquet", decode=True, shuffle=False, num_workers=0)
    assert samples_of(str(tmp_path / "table") + "/")[4] == {
        "__key__": "004", "jpg": bytes([4]) * 900, "json": {"n": 4}
    }  # fmt: skip


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    names = ["new\nline", "..", "quote'\"", "-rf", "%2e%2e", "ünï", "~", "a b", "$HOME", "{0,9}", "*"]
    folder = make(
        tmp_path / "in", {f"{name}x.txt": name.encode() for name in names if not name.startswith(".")}
    )
    make(folder, {"..x/..y/a.txt": b"hidden"})
    raw = os.path.join(os.fsencode(folder), b"\xff\xfe.txt")
    with open(raw, "wb") as file:
        file.write(b"raw")
    done = al.convert(folder, tmp_path / "out", num_workers=2)
    found = {sample["__key__"]: sample["txt"] for sample in samples_of(str(tmp_path / "out") + "/")}
    expected = {f"{name}x": name.encode() for name in names if not name.startswith(".")}
    assert found == {**expected, os.fsdecode(b"\xff\xfe"): b"raw"}
    assert (done.hidden_files, {path.name for path in tmp_path.iterdir()}) == (1, {"in", "out"})
    with pytest.raises(ValueError, match="surrogates not allowed"):
        al.convert(folder, tmp_path / "table", to="parquet", num_workers=0)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in/empty").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"there is no file below '.*/in'$"):
        al.convert(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/README": b""}, "'a/README' has no extension.*rename it"),
        (
            {"a/0.jpg": b"1", "a/0.JPG": b"2"},
            "'a/0.JPG' and 'a/0.jpg' are the same field 'jpg' of sample 'a/0'",
        ),
        ({"a/.hidden": b""}, "no file below .* except 1 hidden ones"),
    ],
)
def test_what_would_be_lost_is_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        al.convert(make(tmp_path / "in", files), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"a/0.txt": b"1"})
    (folder / "circle").symlink_to(folder)
    with pytest.raises(ValueError, match="'circle' is a link to a folder"):
        al.convert(folder, tmp_path / "out")
    (folder / "circle").unlink()
    (folder / "nowhere.txt").symlink_to(folder / "missing")
    with pytest.raises(ValueError, match=r"'nowhere.txt' cannot be read"):
        al.convert(folder, tmp_path / "out")
    (folder / "nowhere.txt").unlink()
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(ValueError, match=r"'pipe.txt' is no regular file"):
        al.convert(folder, tmp_path / "out")
    (folder / "pipe.txt").unlink()
    (folder / "good.txt").symlink_to(folder / "a/0.txt")
    al.convert(folder, tmp_path / "out", shuffle=False, num_workers=0)
    assert samples_of(str(tmp_path / "out") + "/")[1] == {"__key__": "good", "txt": b"1"}


def test_labels_need_folders_and_their_fields(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"0.txt": b"1"})
    with pytest.raises(ValueError, match=r"'0.txt' is in none"):
        al.convert(folder, tmp_path / "out", labels=True)
    (folder / "0.txt").unlink()
    with pytest.raises(ValueError, match=r"there is 'a/0.cls' already"):
        al.convert(make(folder, {"a/0.cls": b"1"}), tmp_path / "out", labels=True)


def test_the_output_is_not_packed_with_the_rest(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"0.txt": b"1"})
    for output in (folder, folder / "out", folder / "a/../out"):
        with pytest.raises(ValueError, match="is in the folder of files: write beside it"):
            al.convert(folder, output)


def test_a_file_that_is_changed_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "in", {"0.txt": b"1", "1.txt": b"1"})
    # The bar moves when a shard is made.
    monkeypatch.setattr("tqdm.auto.tqdm.update", lambda bar: (folder / "1.txt").write_bytes(b"22"))
    with pytest.raises(al.StoreError, match="changed while it was being converted"):
        al.convert(folder, tmp_path / "out", samples_per_shard=1, shuffle=False, num_workers=0, progress=True)
    assert not (tmp_path / "out/asyncloader-index.json").exists()


def test_files_that_changed_since_are_another_job(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"0.txt": b"1", "1.txt": b"2"})
    al.convert(folder, tmp_path / "out", num_workers=0)
    (folder / "0.txt").write_bytes(b"22")
    with pytest.raises(ValueError, match=r"'0.txt' has changed since; call it again as it was called"):
        al.convert(folder, tmp_path / "out", num_workers=0)
    al.convert(folder, tmp_path / "out", num_workers=0, overwrite=True)
    assert {sample["txt"] for sample in samples_of(str(tmp_path / "out") + "/")} == {b"22", b"2"}


def test_what_names_a_folder_of_files(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"0.txt": b"line\n", "1.txt": b"line\n"})
    # With "/" at its end, it is its shards.
    assert al.convert(f"{folder}/", tmp_path / "shards", to="jsonl", num_workers=0).shuffle is None
    assert samples_of(f"{tmp_path}/shards/") == [{"text": "line"}] * 2
    al.convert(f"{folder}/", tmp_path / "files", format="files", num_workers=0)
    assert [sample["txt"] for sample in samples_of(f"{tmp_path}/files/")] == [b"line\n"] * 2
    make(folder, {"a/2.tar": b""})
    with pytest.raises(ValueError, match=r"'a/2.tar' in .* is a shard: .* end its name with '/'"):
        al.convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert al.convert(folder, tmp_path / "out", format="files", num_workers=0).samples == 3


def test_a_folder_of_files_that_is_named_as_one_of_shards_says_how_to_name_it(
    pictures: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="is a shard by its suffix") as caught:
        al.convert(f"{pictures}/dog/", tmp_path / "out")
    assert caught.value.__notes__ == ["name a folder of files without '/' at its end, or with format='files'"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";"}, "delimiter is for shards"),
        ({"index": "m.json"}, "index is for shards"),
        ({"block_size": 4}, "block_size is for shards"),
        ({"urls": ["{in}", "{in}"], "format": "files"}, "takes one folder, but got 2 names"),
        ({"urls": "{in}/0.txt", "labels": True}, "labels are for a folder of files"),
        ({"urls": "{in}/nowhere", "format": "files"}, "there is no folder '.*/in/nowhere'"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = str(make(tmp_path / "in", {"0.txt": b"1"}))
    urls = options.pop("urls", folder)
    named = (
        [url.format(**{"in": folder}) for url in urls]
        if isinstance(urls, list)
        else urls.format(**{"in": folder})
    )
    with pytest.raises(ValueError, match=message):
        al.convert(named, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_pack_says_what_has_taken_its_place() -> None:
    with pytest.raises(ImportError, match="pack is now convert, which takes a folder"):
        al.pack  # type: ignore[attr-defined]  # noqa: B018 - the access is the test
