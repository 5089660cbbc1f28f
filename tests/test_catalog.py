"""What a recipe's names come to: patterns asked of disk and servers once, formats, indexes, options."""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from servers import S3Server, run_moto

import asyncloader as al
from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.pipeline.dataset import stages_of
from asyncloader.shards.catalog import BESIDE, Catalog, make_catalog
from asyncloader.stores.store import NetworkPolicy


def catalog(urls: Any, **given: Any) -> Catalog:
    options, index = given.pop("options", {}), given.get("index", BESIDE)
    return make_catalog(urls, given.get("format"), index, options, NetworkPolicy(attempts=1))


def write(folder: Path, count: int = 3) -> list[str]:
    with al.ShardWriter(folder / "s-%d.tar", samples_per_shard=2) as writer:
        for number in range(2 * count):
            writer.write({"__key__": f"{number}", "txt": f"sample {number}"})
    return [shard.path for shard in writer.shards]


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Server]:
    """A bucket with two folders, one of them with an index."""
    pytest.importorskip("moto")
    with run_moto() as server:
        client = server.client()
        client.create_bucket(Bucket="corpus")
        for key in ("train/0.tar", "train/b/1.tar", "train/readme.md", "other/2.tar"):
            client.put_object(Bucket="corpus", Key=key, Body=b"x" * 10)
        yield server
        client.close()


@pytest.mark.parametrize("root", ["s3://bucket/", "https://me:SENTINEL@h/", "/data/", ""])
def test_a_range_of_a_million_shards_is_as_small_as_its_pattern(root: str) -> None:
    recipe = al.from_urls(f"{root}train-{{000000..999999}}.tar", index=None).shuffle(100)
    assert stages_of(recipe).source.urls[-1] == f"{root}train-999999.tar"  # type: ignore[attr-defined]
    assert "1000000 tar" in repr(recipe)
    assert len(cloudpickle.dumps(recipe)) < 10_000


def test_a_range_and_a_list_of_its_names_have_one_state() -> None:
    pattern, shown = (
        "https://me:SENTINEL@h/{08..11}.tar?x=SENTINEL",
        "".join(f"https://h/{number:02}.tar\n" for number in range(8, 12)),
    )
    names = [f"https://me:SENTINEL@h/{number:02}.tar?x=SENTINEL" for number in range(8, 12)]
    states = [al.DataLoader(al.from_urls(urls)).state_dict() for urls in (pattern, names)]
    assert states[0] == states[1]
    assert json.loads(states[0]["dataset"])["urls_sha256"] == hashlib.sha256(shown.encode()).hexdigest()
    al.DataLoader(al.from_urls(names)).load_state_dict(states[0])


def test_only_the_first_state_costs_the_names() -> None:
    loader = al.DataLoader(al.from_urls("s3://b/{000000..199999}.tar"))
    took_s = []
    for _ in range(4):
        began_s = time.process_time()
        loader.state_dict()
        took_s.append(time.process_time() - began_s)
    assert min(took_s[1:]) < took_s[0] / 5


def test_a_lane_of_a_large_range_is_read_as_a_list_would_be(tmp_path: Path) -> None:
    paths = write(tmp_path, 12)
    (tmp_path / "asyncloader-index.json").unlink()
    names = al.from_urls(paths).shuffle(2, seed=1)
    pattern = al.from_urls(f"{tmp_path}/s-{{0..11}}.tar").shuffle(2, seed=1)
    batches = [list(al.DataLoader(recipe, 4, lanes=3, collate_fn=list)) for recipe in (names, pattern)]
    assert batches[0] == batches[1] and sum(map(len, batches[0])) == 24
    loader = al.DataLoader(pattern, 4, lanes=3, num_workers=2, collate_fn=list)
    assert list(loader) == batches[0]


def test_a_folder_means_its_shards_and_their_index(tmp_path: Path) -> None:
    paths = write(tmp_path)
    (tmp_path / "notes.md").write_text("no shard")
    found = catalog(f"{tmp_path}/")
    assert found.urls == tuple(paths)
    assert found.formats == ("tar",) * 3
    assert [check.samples for check in found.checks if check] == [2, 2, 2]


def test_without_an_index_nothing_is_expected(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "asyncloader-index.json").unlink()
    assert catalog(f"{tmp_path}/*.tar").checks == ()


def double(sample: Any) -> Any:
    return sample


def test_a_recipe_shows_what_was_matched_and_what_is_done_to_it(tmp_path: Path) -> None:
    paths = write(tmp_path)
    recipe = al.from_urls(f"{tmp_path}/*.tar").shuffle(100, seed=3).map(double, concurrency=4).take(7)
    assert repr(recipe) == (
        f"Dataset(Shards(3 tar, first='{paths[0]}', in_index=3), "
        "shuffle(window=100, seed=3), map(double), take(count=7))"
    )
    mixed = al.from_urls(["https://me:SENTINEL@h/a.txt?sig=SENTINEL", "s3://b/x.tar", "s3://b/y.tar"])
    assert repr(mixed) == "Dataset(Shards(2 tar + 1 text, first='https://h/a.txt'))"
    assert repr(al.from_iterable([1, 2]).repeat()) == "Dataset(Iterables(list), repeat(times=None))"


def test_a_prefix_is_listed_once_and_spliced_in_at_its_place(bucket: S3Server, tmp_path: Path) -> None:
    (local,) = write(tmp_path, 1)
    (tmp_path / "asyncloader-index.json").unlink()
    names = ["s3://corpus/other/2.tar", "s3://corpus/train/", local]
    recipe = al.from_urls(names, storage_options=bucket.options)
    assert stages_of(recipe).source.urls == (  # type: ignore[attr-defined]
        "s3://corpus/other/2.tar",
        "s3://corpus/train/0.tar",
        "s3://corpus/train/b/1.tar",
        local,
    )
    assert pickle.loads(cloudpickle.dumps(recipe)) == recipe


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("s3://corpus/train/*.tar", ["train/0.tar"]),
        ("s3://corpus/**/*.tar", ["other/2.tar", "train/0.tar", "train/b/1.tar"]),
        ("s3://corpus/{train,other}/[0-2].tar", ["train/0.tar", "other/2.tar"]),
    ],
)
def test_globs_hold_for_keys(bucket: S3Server, pattern: str, keys: list[str]) -> None:
    assert catalog(pattern, options=bucket.options).urls == tuple(f"s3://corpus/{key}" for key in keys)


def test_with_a_format_every_object_below_a_prefix_is_a_shard(bucket: S3Server) -> None:
    found = catalog("s3://corpus/train/", format="text", options=bucket.options)
    assert [url.rpartition("/")[2] for url in found.urls] == ["0.tar", "1.tar", "readme.md"]
    assert set(found.formats) == {"text"}


def test_a_prefix_of_several_formats_is_refused_and_the_glob_it_names_works(bucket: S3Server) -> None:
    client = bucket.client()
    client.create_bucket(Bucket="mixed")
    for key in ("0.tar", "a/1.tar", "README.txt"):
        client.put_object(Bucket="mixed", Key=key, Body=b"x")
    client.close()
    with pytest.raises(
        ValueError, match=r"2 tar .*0\.tar.*1 text .*README\.txt.* s3://mixed/\*\*/\*\.tar, or"
    ):
        catalog("s3://mixed/", options=bucket.options)
    assert catalog("s3://mixed/**/*.tar", options=bucket.options).formats == ("tar", "tar")


def test_a_prefix_without_a_shard_is_an_error_that_says_what_is_there(bucket: S3Server) -> None:
    with pytest.raises(ValueError, match=r"no object .* s3://corpus/nothing/"):
        catalog("s3://corpus/nothing/", options=bucket.options)


def test_a_server_that_cannot_be_asked_is_an_error_of_the_store(unused_tcp_port: int) -> None:
    options = {"endpoint": f"http://127.0.0.1:{unused_tcp_port}", "access_key_id": "x"}
    with pytest.raises(StoreError, match="could be reached") as caught:
        catalog(
            "s3://corpus/train/", options={**options, "secret_access_key": "SENTINEL", "region": "us-east-1"}
        )
    assert "s3://corpus/train/" in str(caught.value)


def test_the_index_of_a_listed_folder_is_used(bucket: S3Server, tmp_path: Path) -> None:
    client = bucket.client()
    for path in [*write(tmp_path), str(tmp_path / "asyncloader-index.json")]:
        client.upload_file(path, "corpus", f"whole/{Path(path).name}")
    client.close()
    found = catalog("s3://corpus/whole/", options=bucket.options)
    assert [check.samples for check in found.checks if check] == [2, 2, 2]
    recipe = al.from_urls("s3://corpus/whole/", storage_options=bucket.options)
    assert len([sample for sample in al.DataLoader(recipe, None)]) == 6


def test_the_broken_index_of_a_listed_folder_is_warned_of(bucket: S3Server) -> None:
    client = bucket.client()
    client.create_bucket(Bucket="cut")
    for key in ("x/0.tar", "x/asyncloader-index.json"):
        client.put_object(Bucket="cut", Key=key, Body=b"")
    client.close()
    with pytest.warns(
        RuntimeWarning, match=r"s3://cut/x/asyncloader-index\.json is no index of shards: it is empty"
    ):
        assert catalog("s3://cut/x/*.tar", options=bucket.options).checks == ()


@pytest.mark.parametrize("far", [False, True], ids=["local", "served"])
def test_a_named_index_is_read_from_wherever_it_is(far: bool, tmp_path: Path) -> None:
    paths = write(tmp_path)
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(Path(path).name) for path in paths]
        place = server.url_of("asyncloader-index.json") if far else str(tmp_path / "asyncloader-index.json")
        found = catalog(urls if far else paths, index=place)
    assert [check.samples for check in found.checks if check] == [2, 2, 2]


def test_a_tilde_in_the_name_of_an_index_or_a_cache_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = catalog("~/s-{0..2}.tar", index="~/asyncloader-index.json")
    assert [check.samples for check in found.checks if check] == [2, 2, 2]
    recipe = al.from_urls("s3://b/x.tar", cache_dir="~/cache")
    assert stages_of(recipe).source.access.cache.folder == f"{tmp_path}/cache"  # type: ignore[attr-defined]


def test_a_named_index_must_be_there_and_know_every_shard(tmp_path: Path) -> None:
    paths = write(tmp_path)
    with pytest.raises(ValueError, match=r"there is no index .*asyncloader index"):
        catalog(paths, index=tmp_path / "none.json")
    entries = json.loads((tmp_path / "asyncloader-index.json").read_text())
    del entries["shards"][1]
    (tmp_path / "asyncloader-index.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="no entry for 1 of 3 shards"):
        catalog(paths, index=tmp_path / "asyncloader-index.json")
    with pytest.raises(TypeError, match="index should be a URL or path, but got int"):
        catalog(paths, index=7)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("http://h/x.tar", {"endpoint": "x"}, r"unknown option 'endpoint' for http\(s\)"),
        ("s3://b/x.tar", {"headers": {}}, "unknown option 'headers' for s3"),
        ("hf://datasets/a/b/x.tar", {"region": "x"}, "unknown option 'region' for hf"),
        ("/tmp/x.tar", {"region": "x"}, "local files have no storage options, but got region"),
    ],
)
def test_an_option_that_its_store_does_not_have_is_refused_at_once(
    url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        al.from_urls(url, storage_options=options)


def test_a_bucket_and_a_web_server_may_be_mixed_with_the_options_of_each() -> None:
    options = {"headers": {"Authorization": "Bearer SENTINEL"}, "region": "us-east-1"}
    recipe = al.from_urls(["s3://b/x.tar", "https://h/x.tar"], storage_options=options, index=None)
    assert "SENTINEL" not in repr(recipe)


def test_the_shards_of_a_hub_folder_are_listed_and_read(tmp_path: Path) -> None:
    paths = write(tmp_path)
    tree = [{"type": "file", "path": f"data/{Path(p).name}", "size": Path(p).stat().st_size} for p in paths]
    objects: dict[str, Any] = {"api/datasets/me/set/tree/main/data": json.dumps(tree).encode()}
    for path in paths:
        objects[f"datasets/me/set/resolve/main/data/{Path(path).name}"] = Path(path).read_bytes()
    with testing.serve(objects) as server:
        recipe = al.from_urls("hf://datasets/me/set/data/", storage_options={"endpoint": server.url})
        samples = list(al.DataLoader(recipe, None))
    assert [sample["__url__"] for sample in samples[::2]] == [
        f"hf://datasets/me/set/data/s-{number}.tar" for number in range(3)
    ]


class TestSizes:
    """They are known of all shards, by whoever has told them already and by the disk, or of none."""

    def test_those_of_local_files_are_looked_up(self, tmp_path: Path) -> None:
        paths = write(tmp_path)
        lengths = [Path(path).stat().st_size for path in paths]
        for urls in (paths, f"{tmp_path}/", f"{tmp_path}/s-{{0..2}}.tar", f"file://{tmp_path}/*.tar"):
            for index in (BESIDE, None):
                assert sizes_of(catalog(urls, index=index)) == lengths
        assert sizes_of(catalog([*paths, str(tmp_path / "none.tar")], index=None)) is None
        (tmp_path / "pipe.tar").mkdir()
        assert sizes_of(catalog([*paths, str(tmp_path / "pipe.tar")], index=None)) is None

    def test_those_of_very_many_local_files_are_not(self, tmp_path: Path) -> None:
        for number in range(10_001):
            (tmp_path / f"{number}.txt").touch()
        assert sizes_of(catalog(f"{tmp_path}/{{0..9999}}.txt")) == [0] * 10_000
        assert sizes_of(catalog(f"{tmp_path}/{{0..10000}}.txt")) is None

    def test_an_index_tells_those_of_a_web_server(self, tmp_path: Path) -> None:
        paths = write(tmp_path)
        lengths = [Path(path).stat().st_size for path in paths]
        with testing.serve(tmp_path) as server:
            assert sizes_of(catalog(f"{server.url}/s-{{0..2}}.tar")) == lengths
            assert sizes_of(catalog([f"{server.url}/s-1.tar", *paths])) == [lengths[1], *lengths]
            assert sizes_of(catalog(f"{server.url}/s-{{0..2}}.tar", index=None)) is None
            assert {request.path for request in server.requests} == {"/asyncloader-index.json"}

    def test_a_listing_tells_those_of_its_shards(self, tmp_path: Path) -> None:
        (local,) = write(tmp_path, 1)
        tree = [{"type": "file", "path": f"data/{name}.tar", "size": 7 + name} for name in range(3)]
        with testing.serve({"api/datasets/me/set/tree/main/data": json.dumps(tree).encode()}) as server:
            options = {"endpoint": server.url}
            folder = "hf://datasets/me/set/data/"
            assert sizes_of(catalog(folder, options=options)) == [7, 8, 9]
            told = sizes_of(catalog([local, folder], options=options))
            assert told == [Path(local).stat().st_size, 7, 8, 9]
            assert sizes_of(catalog([folder, f"{folder}1.tar"], options=options)) is None


def sizes_of(found: Catalog) -> list[int] | None:
    return None if found.sizes is None else found.sizes.tolist()


class TestBesideShardsOfAWebServer:
    """An index is looked for with one request, in the folder that all shards have in common."""

    @pytest.mark.parametrize("as_list", [False, True])
    def test_it_is_found_with_one_request(self, tmp_path: Path, as_list: bool) -> None:
        write(tmp_path / "a" / "b")
        with testing.serve(tmp_path / "a") as server:
            urls = [f"{server.url}/b/s-{number}.tar" for number in range(3)]
            recipe = al.from_urls(urls if as_list else f"{server.url}/b/s-{{0..2}}.tar")
            assert [request.path for request in server.requests] == ["/b/asyncloader-index.json"]
            loader = al.DataLoader(recipe, 2, collate_fn=list)
            assert len(loader) == 3 == len(list(loader))
            assert "in_index=3" in repr(recipe)

    def test_one_for_several_folders_lies_in_the_folder_above(self, tmp_path: Path) -> None:
        shards = [*write(tmp_path / "a"), *write(tmp_path / "b")]
        al.build_index(shards, output=tmp_path / "asyncloader-index.json")
        with testing.serve(tmp_path) as server:
            recipe = al.from_urls([f"{server.url}/{name}/s-{{0..2}}.tar" for name in "ab"])
            assert [request.path for request in server.requests] == ["/asyncloader-index.json"]
            assert len(al.DataLoader(recipe, 2)) == 6

    def test_a_broken_shard_is_told_from_it(self, tmp_path: Path) -> None:
        write(tmp_path)
        (tmp_path / "s-1.tar").write_bytes(bytes(10_240))
        with testing.serve(tmp_path) as server:
            loader = al.DataLoader(al.from_urls(f"{server.url}/s-{{0..2}}.tar"), 2, collate_fn=list)
            with pytest.raises(StoreError, match="the index promises"):
                list(loader)

    @pytest.mark.parametrize("status", [401, 403, 404, 410])
    def test_a_refusal_means_that_there_is_none(self, tmp_path: Path, status: int) -> None:
        write(tmp_path)
        with testing.serve(tmp_path, [testing.Status(status, key="asyncloader-index.json")]) as server:
            loader = al.DataLoader(al.from_urls(f"{server.url}/s-{{0..2}}.tar"), 2, collate_fn=list)
            assert len(server.requests) == 1
            with pytest.raises(TypeError) as caught:
                len(loader)
            assert f"there is none at {server.url}/asyncloader-index.json; asyncloader index" in str(
                caught.value
            )
            assert len(list(loader)) == 3

    @pytest.mark.parametrize(
        "content",
        [
            b"<!DOCTYPE html>\n<p>",
            b"\xef\xbb\xbf<html>",
            b'\n<pre>{"asyncloader_index": 1}</pre>',
            b'{"name": "an app"}',
            b"null",
        ],
    )
    def test_what_is_somebody_elses_is_left_alone(self, tmp_path: Path, content: bytes) -> None:
        write(tmp_path)
        (tmp_path / "asyncloader-index.json").write_bytes(content)
        with testing.serve(tmp_path) as server:
            loader = al.DataLoader(al.from_urls(f"{server.url}/s-{{0..2}}.tar"), 2, collate_fn=list)
            assert len(list(loader)) == 3

    @pytest.mark.parametrize("content", [b"", bytes(300), b"{", b'{"asyncloader', b"Not found"], ids=range(5))
    def test_what_is_damaged_or_unknown_is_warned_of(self, content: bytes) -> None:
        with testing.serve({"asyncloader-index.json": content}) as server:
            urls, warning = (
                f"{server.url}/s-{{0..2}}.tar",
                "asyncloader-index.json is no index of shards: it ",
            )
            with pytest.warns(RuntimeWarning, match=warning):
                assert catalog(urls).checks == ()

    def test_no_answer_is_an_error_that_names_the_way_out(self, tmp_path: Path) -> None:
        write(tmp_path)
        once = NetworkPolicy(attempts=1)
        with testing.serve(tmp_path, [testing.Status(503, key="asyncloader-index.json")]) as server:
            with pytest.raises(StoreError, match="503") as caught:
                al.from_urls(f"{server.url}/s-{{0..2}}.tar", network=once)
            assert caught.value.shard == f"{server.url}/asyncloader-index.json"
            assert any("index=None" in note for note in caught.value.__notes__)
            asked = len(server.requests)
            loader = al.DataLoader(al.from_urls(f"{server.url}/s-{{0..2}}.tar", index=None), 2)
            assert len(server.requests) == asked
            with pytest.raises(TypeError, match="none was searched for, since index=None was given"):
                len(loader)

    def test_a_server_out_of_reach_is_an_error_of_the_shards(self) -> None:
        with testing.serve({}) as server:
            url = server.url  # nothing listens there any more
        with pytest.raises(StoreError, match="connection failed") as caught:
            al.from_urls([f"{url}/s-{number}.tar" for number in range(3)], network=NetworkPolicy(attempts=1))
        assert caught.value.shard == f"{url}/s-0.tar"
        assert any(f"{url}/asyncloader-index.json" in note for note in caught.value.__notes__)

    def test_nothing_is_asked_where_there_is_no_beside(self, tmp_path: Path) -> None:
        write(tmp_path)
        with testing.serve(tmp_path) as server, testing.serve(tmp_path) as other:
            al.from_urls([f"{server.url}/s-{number}.tar?sig=x" for number in range(3)])
            al.from_urls([f"{server.url}/s-0.tar", f"{other.url}/s-1.tar"])
            with pytest.raises(ValueError, match="renew is for"):
                al.from_urls(str(tmp_path / "s-0.tar"), renew=str.upper)
            assert not server.requests and not other.requests


def test_none_looks_for_no_index_and_the_length_error_names_the_one_that_is_there(tmp_path: Path) -> None:
    paths = write(tmp_path)
    loader = al.DataLoader(al.from_urls(f"{tmp_path}/", index=None), 2)
    with pytest.raises(TypeError) as caught:
        len(loader)
    assert f"{tmp_path}/asyncloader-index.json lies beside them and was not read" in str(caught.value)
    (tmp_path / "more.tar").write_bytes(Path(paths[0]).read_bytes())
    with pytest.raises(TypeError) as caught:
        len(al.DataLoader(al.from_urls(f"{tmp_path}/*.tar"), 2))
    assert f"in 1 of the 4 shards; {tmp_path}/asyncloader-index.json does not list them" in str(caught.value)
    with pytest.raises(TypeError, match=r"pass index='s3://bucket/train/asyncloader-index.json'"):
        len(al.DataLoader(al.from_urls("s3://bucket/train/{0..3}.tar"), 2))


@pytest.mark.parametrize(
    "call",
    [
        lambda: al.from_urls("a.tar", manifest=None),  # type: ignore[call-arg]  # what is tested
        lambda: al.convert("a.tar", "out", to="tar", manifest="m.json"),  # type: ignore[call-arg]
        lambda: al.tools.verify_audit("log", manifest="m.json"),  # type: ignore[call-arg]
    ],
    ids=["from_urls", "convert", "verify_audit"],
)
def test_the_former_name_of_an_option_is_refused_with_its_name(call: Any) -> None:
    with pytest.raises(TypeError, match=r"manifest.*index="):
        call()
