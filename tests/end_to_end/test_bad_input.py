"""Each wrong input gives one clear error: what was wrong, where, and what to do. Nothing hangs."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus import Corpus

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.topology import Topology

from .harness import recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def error_of(loader: al.DataLoader[Any], kind: type[Exception]) -> Any:
    """The one error of a pass; the loader must have let go of everything."""
    with testing.check_leaks():
        try:
            for _ in loader:
                pass
        except kind as error:
            assert not isinstance(error, BaseExceptionGroup)
            error.__traceback__ = None
            caught = error
        else:
            pytest.fail(f"no {kind.__name__} was raised")
        loader.close()
    return caught


# --- calls, refused before any I/O ---


@pytest.mark.parametrize(
    ("urls", "options", "kind", "message"),
    [
        ("ftp://host/a.tar", {}, ValueError, r"unknown scheme ftp://.*known are http://, .*plain paths"),
        ("a.zip", {}, ValueError, r"cannot tell the format of 'a\.zip'.*\.tar.*or name the format"),
        (
            "a.bin",
            {"format": "zip"},
            ValueError,
            r"format must be one of 'tar', 'jsonl', 'text', .*, 'npz', .*, 'litdata', not 'zip'",
        ),
        ([], {}, ValueError, "at least one shard, but got an empty list"),
        ("/nowhere/*.tar", {}, ValueError, r"no file matches '/nowhere/\*\.tar'"),
        ("a-{9..1}.tar", {}, ValueError, "a brace range should rise"),
        ([b"a.tar"], {}, TypeError, "strings or paths, but got bytes"),
        (b"a.tar", {}, TypeError, "strings or paths, but got bytes"),
        ("a.tar", {"format": ["tar"]}, ValueError, r"format must be one of .* not \['tar'\]"),
        ("a.tar", {"storage_options": "key"}, TypeError, "storage_options should be a mapping .* got str$"),
        (7, {}, TypeError, "int"),
    ],
)
def test_wrong_urls_are_refused_at_once(
    urls: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        al.from_urls(urls, **options)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda ds: ds.map(3), TypeError, "map should get a function of one sample, but got int"),
        (lambda ds: ds.map(str, concurrency=0), ValueError, "concurrency should be a positive integer"),
        (lambda ds: ds.map(str, concurrency=True), ValueError, "concurrency should be a positive integer"),
        (lambda ds: ds.filter("odd"), TypeError, "filter should get a function of one sample, but got str"),
        (lambda ds: ds.filter(_async_predicate), TypeError, r"plain function.*put its answer .* with \.map"),
        (lambda ds: ds.shuffle(0), ValueError, "window should be a positive integer value, but got window=0"),
        (lambda ds: ds.shuffle(2.5), ValueError, "window should be a positive integer"),
        (lambda ds: ds.shuffle(2, seed="x"), TypeError, "seed should be an int, but got seed='x'"),
        (lambda ds: ds.select_columns(), ValueError, "at least one field name"),
        (
            lambda ds: ds.select_columns(["a", "b"]),
            TypeError,
            "select_columns should get field names, but got list",
        ),
        (lambda ds: ds.rename(), ValueError, "at least one pair"),
        (lambda ds: ds.rename({"a": "c", "b": "c"}), ValueError, "two fields the same name"),
        (lambda ds: ds.rename({"a": 3}), TypeError, "rename should get field names, but got int: 3"),
        (lambda ds: ds.repeat(0), ValueError, "times should be a positive integer value, but got times=0"),
        (lambda ds: ds.take(-1), ValueError, "count should be a positive integer value, but got count=-1"),
        (lambda ds: ds.decode({"jpg": 3}), TypeError, "decode should get functions .*but got 'jpg': 3"),
        (lambda ds: ds.decode("pil"), TypeError, r"but got str: 'pil'; write .decode\(\)"),
        (lambda ds: ds.decode([len]), TypeError, "decode should get a mapping .*but got list"),
        (lambda ds: ds.decode(concurrency=0), ValueError, "concurrency should be a positive integer"),
    ],
)
def test_wrong_operator_arguments_are_refused_at_once(
    call: Callable[[al.Dataset], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(al.from_urls("train.tar"))


async def _async_predicate(sample: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "iterable or a function that makes one, but got int"),
        (iter([1, 2]), "list_iterator, which can be iterated only once; pass a function that makes one"),
        ((n for n in range(3)), "generator, which can be iterated only once"),
    ],
)
def test_sources_that_are_none_or_run_out_are_refused_at_once(source: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        al.from_iterable(source)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size should be a positive integer value"),
        ({"batch_size": None, "drop_last": True}, ValueError, "mutually exclusive with drop_last"),
        ({"num_workers": -1}, ValueError, "num_workers should be 0 or a positive integer"),
        ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
        (
            {"snapshot_every_n_steps": 2},
            TypeError,
            "snapshot_every_n_steps is for iterable datasets of torch",
        ),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor should be a positive int"),
        ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
        ({"shuffle": True}, ValueError, r"use \.shuffle\(window, seed=\.\.\.\) on the dataset"),
        ({"sampler": [1]}, ValueError, "expected unspecified sampler option"),
        ({"batch_sampler": [1]}, ValueError, "expected unspecified batch_sampler option"),
        ({"collate_fn": 3}, TypeError, "collate_fn should be callable, but got int"),
        ({"collate_fn": al.Pad}, TypeError, r"such as Pad\(\.\.\.\), but got the class Pad itself"),
        ({"worker_init_fn": 3}, TypeError, "worker_init_fn should be callable, but got int"),
        ({"multiprocessing_context": "spawn"}, ValueError, "multiprocessing_context cannot be chosen"),
        ({"memory_limit": 1000}, ValueError, r"at least 16777216 bytes .* memory_limit=1000"),
        ({"memory_limit": 1e9}, TypeError, "memory_limit should be a number of bytes"),
        ({"memory_limit": "1G"}, ValueError, "memory_limit should be a number with its unit"),
        ({"memory_limit": "8 MiB"}, ValueError, "memory_limit should be at least"),
        ({"lanes": 0}, ValueError, "lanes should be a positive integer value, but got lanes=0"),
        ({"rank": 1}, ValueError, "rank and world_size should be given together"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank should be in the interval \[0, 1\]"),
        ({"rank": 0, "world_size": 0}, ValueError, "world_size should be at least 1"),
        ({"rank": 0, "world_size": "2"}, TypeError, "world_size should be a whole number, but got .*='2'"),
        ({"rank": 0.0, "world_size": 2}, TypeError, "rank should be a whole number, but got rank=0.0"),
        ({"rank": True, "world_size": 2}, TypeError, "rank should be a whole number, but got rank=True"),
        ({"timeout": float("nan")}, ValueError, "timeout should be a number of seconds.*timeout=nan"),
        ({"timeout": float("inf")}, ValueError, "0 for no limit, but got timeout=inf"),
        ({"num_workers": 1, "prefetch_factor": 2.5}, ValueError, "prefetch_factor should be a positive int"),
        ({"generator": 3}, TypeError, r"generator should be a torch\.Generator, but got int"),
        (
            {"lanes": 6, "rank": 0, "world_size": 4},
            ValueError,
            "6 lanes cannot be split evenly over 4 ranks; they fit a world size of 1, 2, 3, 6",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_wrong_loader_options_are_refused_at_once(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    recipe = al.from_iterable(lambda topology: topology.split(range(9)))
    with pytest.raises(kind, match=message):
        al.DataLoader(recipe, **options)


def test_a_world_with_more_ranks_than_shards_is_refused_with_the_numbers(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("tar").first(2))
    message = "2 shards cannot be split over 5 ranks: 3 of them .*at least 5 shards, use at most 2 ranks"
    with pytest.raises(ValueError, match=message):
        al.DataLoader(recipe, rank=0, world_size=5)


def test_an_environment_with_half_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE should be set together"):
        al.DataLoader(al.from_iterable(lambda topology: []))


def test_the_length_of_a_stream_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="the length of this loader is not known"):
        len(al.DataLoader(al.from_iterable(lambda topology: [])))


def test_set_epoch_takes_only_numbers_of_epochs() -> None:
    loader = al.DataLoader(al.from_iterable(lambda topology: []))
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="epoch should be a non-negative integer"):
            loader.set_epoch(wrong)  # type: ignore[arg-type]  # what is tested


# --- the world: what stores and shards turn out to be ---


@WORKERS
def test_a_missing_object_names_url_and_status(workers: int, served: testing.Server) -> None:
    url = f"{served.url}/missing.tar"
    recipe = al.from_urls(f"{url}?signature=SENTINEL")
    error = error_of(al.DataLoader(recipe, num_workers=workers), al.StoreError)
    assert (error.shard, error.status) == (url, 404)
    shown = "".join(traceback.format_exception(error))
    assert url in shown and "404" in shown and "SENTINEL" not in shown
    assert "in lane 0 of" in shown


@WORKERS
def test_a_missing_file_names_its_path(workers: int, tmp_path: Path) -> None:
    path = str(tmp_path / "missing.tar")
    error = error_of(al.DataLoader(al.from_urls(path), num_workers=workers), al.StoreError)
    assert error.shard == path and "No such file" in str(error)


@WORKERS
def test_missing_files_are_noticed_before_workers_start_and_the_first_batch(
    workers: int, tmp_path: Path
) -> None:
    for number in (0, 1):
        (tmp_path / f"{number}.txt").write_text("a\nb\n")
    one_too_many = al.from_urls(f"{tmp_path}/{{0..2}}.txt")
    for recipe in (one_too_many, al.mix([al.from_urls(f"{tmp_path}/0.txt"), one_too_many])):
        loader = al.DataLoader(recipe, 1, num_workers=workers)
        with pytest.raises(al.StoreError, match="No such file") as caught:
            iter(loader)
        assert caught.value.shard == f"{tmp_path}/2.txt"
    (tmp_path / "2.txt").write_text("c\n")
    assert len(list(al.DataLoader(one_too_many, 1, num_workers=workers))) == 5


def test_missing_files_may_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("a\nb\n")
    loader = al.DataLoader(al.from_urls(f"{tmp_path}/{{0..1}}.txt"), 1, on_error=al.SkipErrors(max=1))
    assert len(list(loader)) == 2


def test_a_folder_instead_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.tar").mkdir()
    error = error_of(al.DataLoader(al.from_urls(tmp_path / "folder.tar")), al.StoreError)
    assert "folder.tar" in str(error)


def test_a_server_that_is_not_there_is_named() -> None:
    with testing.serve({}) as server:
        url = server.url_of("a.tar")
    once_more = al.NetworkPolicy(attempts=2)
    error = error_of(al.DataLoader(al.from_urls(url, network=once_more, index=None)), al.StoreError)
    assert error.shard == url and re.search("connection|connect", str(error))


@WORKERS
def test_a_directory_listing_instead_of_a_tar_is_told_by_its_first_bytes(workers: int) -> None:
    listing = b"<html>\n<head><title>Index of /corpus/</title></head>\n<body>" + b"<a href='x'>x</a>\n" * 60
    with testing.serve({"corpus.tar": listing}) as server:
        url = server.url_of("corpus.tar")
        error = error_of(al.DataLoader(al.from_urls(url), num_workers=workers), al.FormatError)
    assert (error.shard, error.offset, error.sample) == (url, 0, 0)
    assert "expected a tar header" in str(error) and "look like a web page" in str(error)


def test_a_directory_listing_instead_of_lines_is_told_by_its_first_bytes() -> None:
    with testing.serve({"corpus.jsonl": b"<html>\n<head></head>\n"}) as server:
        url = server.url_of("corpus.jsonl")
        error = error_of(al.DataLoader(al.from_urls(url)), al.FormatError)
    assert (error.shard, error.offset) == (url, 0)
    assert "look like a web page" in str(error)


@WORKERS
@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.zst"])
def test_a_truncated_tar_names_shard_and_offset(
    suffix: str, workers: int, make_corpus: Callable[..., Corpus], tmp_path: Path
) -> None:
    content = Path(make_corpus(suffix).paths[2]).read_bytes()
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(content[: len(content) // 2])
    error = error_of(al.DataLoader(al.from_urls(path), num_workers=workers), al.FormatError)
    assert error.shard == str(path) and error.offset is not None
    assert "truncated" in str(error) or "ends" in str(error)


@WORKERS
def test_a_line_that_is_no_json_names_shard_offset_and_sample(workers: int, tmp_path: Path) -> None:
    lines = [json.dumps({"n": n}) for n in range(10)]
    lines[7] = '{"n": '
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    error = error_of(al.DataLoader(al.from_urls(path), num_workers=workers), al.FormatError)
    assert (error.shard, error.offset, error.sample) == (str(path), len("\n".join(lines[:7])) + 1, 7)


def test_samples_before_a_bad_one_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\nnonsense\n{"n": 3}\n')
    delivered = []
    with pytest.raises(al.FormatError):
        delivered.extend(al.DataLoader(al.from_urls(path), None))
    assert [sample["n"] for sample in delivered] == [0, 1]


# --- the user's samples and functions ---


@WORKERS
def test_a_collate_over_unequal_shapes_names_the_field_and_says_pad(
    workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    recipe = al.from_urls(make_corpus("jsonl").paths).map(
        lambda sample: {**sample, "tokens": torch.tensor(sample["tokens"])}
    )
    error = error_of(al.DataLoader(recipe, 4, num_workers=workers), RuntimeError)
    shown = "".join(traceback.format_exception(error))
    assert "tokens" in shown and "Pad" in shown


@WORKERS
def test_a_missing_field_names_the_sample_and_what_it_has(
    workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("tar")
    recipe = al.from_urls(corpus.paths[:1]).select_columns("txt", "image")
    error = error_of(al.DataLoader(recipe, num_workers=workers), KeyError)
    shown = "".join(traceback.format_exception(error))
    assert "'image'" in shown and "__key__ '0-0'" in shown and "fields: cls, txt" in shown
    assert corpus.paths[0] in shown


def test_a_field_that_does_not_decode_names_field_and_key(tmp_path: Path) -> None:
    with al.ShardWriter(tmp_path / "bad.tar") as writer:
        writer.write({"__key__": "good", "json": {"n": 1}})
        writer.write({"__key__": "bad", "json": b"{"})
    error = error_of(al.DataLoader(al.from_urls(tmp_path / "bad.tar").decode()), al.FormatError)
    shown = "".join(traceback.format_exception(error))
    assert "json" in shown and "'bad'" in shown and "bad.tar" in shown


class NeverAsks(al.AsyncIterableDataset):
    async def __aiter__(self) -> Any:
        for number in range(10):
            yield number


class NeverAsksPlainly:
    def __iter__(self) -> Any:
        return iter(range(10))


@WORKERS
@pytest.mark.parametrize("dataset", [NeverAsks(), al.from_iterable(NeverAsksPlainly())])
def test_a_dataset_that_never_asks_for_its_part_is_refused_with_several_lanes(
    dataset: Any, workers: int
) -> None:
    loader = al.DataLoader(dataset, num_workers=workers, lanes=2)
    error = error_of(loader, RuntimeError)
    assert "should yield only its part of 2 lanes, but it never called" in str(error)
    assert "asyncloader.get_topology()" in str(error)
    assert len(list(al.DataLoader(dataset, num_workers=min(workers, 1)))) == 10, "one lane is all of it"


def test_an_asynchronous_dataset_without_aiter_is_told_what_it_lacks() -> None:
    class Empty(al.AsyncIterableDataset):
        pass

    error = error_of(al.DataLoader(Empty()), TypeError)
    assert "Empty should define __aiter__" in str(error)


def test_a_function_that_makes_no_iterable_is_named() -> None:
    def make(topology: Topology) -> Any:
        return 3

    error = error_of(al.DataLoader(al.from_iterable(make)), TypeError)
    assert "make gave int" in str(error)


def test_a_take_of_more_than_there_is_warns_with_the_numbers(make_corpus: Callable[..., Corpus]) -> None:
    recipe = recipe_of(make_corpus("jsonl").first(1)).take(5)
    with pytest.warns(UserWarning, match=r"take\(5\) lacks 2 samples: the dataset gave only 3"):
        assert sum(len(batch["key"]) for batch in al.DataLoader(recipe, 2)) == 3


def test_an_exit_in_the_users_function_is_an_error_and_not_the_end_of_the_epoch() -> None:
    def leave(number: int) -> int:
        raise SystemExit(3)

    recipe = al.from_iterable(lambda topology: topology.split(range(9))).map(leave)
    for workers in (0, 1):
        with pytest.raises(RuntimeError, match="the function raised SystemExit: 3") as caught:
            list(al.DataLoader(recipe, num_workers=workers))
        own = [frame.name for frame in traceback.extract_tb(caught.tb)]
        notes = getattr(caught.value, "__notes__", [])
        assert "leave" in own or any(", in leave" in note for note in notes), "the function's own frames"


@WORKERS
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, EOFError, TimeoutError, GeneratorExit])
def test_no_error_of_a_users_function_ends_the_epoch_quietly(kind: Any, workers: int) -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise kind
        return number

    recipe = al.from_iterable(lambda topology: topology.split(range(9))).map(fail)
    batches = iter(al.DataLoader(recipe, num_workers=workers, timeout=30))
    with pytest.raises((kind, RuntimeError)):
        list(batches)
    with pytest.raises(RuntimeError, match="closed before the end"):
        next(batches)


@WORKERS
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, TimeoutError])
def test_no_error_of_a_users_coroutine_function_ends_the_epoch_quietly(kind: Any, workers: int) -> None:
    async def fail(number: int) -> int:
        if number == 5:
            raise kind
        return number

    recipe = al.from_iterable(lambda topology: topology.split(range(9))).map(fail, concurrency=2)
    with pytest.raises((kind, RuntimeError)):
        list(al.DataLoader(recipe, num_workers=workers))


def test_a_secret_in_a_url_is_in_no_message_and_no_state(served: testing.Server) -> None:
    host = served.url.removeprefix("http://")
    loader = al.DataLoader(al.from_urls(f"http://user:SENTINEL@{host}/missing.jsonl?sig=SENTINEL"))
    error = error_of(loader, al.StoreError)
    shown = [*traceback.format_exception(error), json.dumps(loader.state_dict()), repr(loader.dataset)]
    assert "SENTINEL" not in "".join(shown)


# --- shards of no bytes ---

EMPTY_NAMES = ["b.jsonl", "b.txt"]
CUT_NAMES = [f"b.{kind}.{end}" for kind in ("jsonl", "txt") for end in ("gz", "zst", "xz", "bz2")]


@pytest.mark.parametrize("name", CUT_NAMES)
def test_a_compressed_shard_of_no_bytes_is_a_cut_one(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    error = error_of(al.DataLoader(al.from_urls(tmp_path / name)), al.FormatError)
    assert "truncated: the shard is empty" in str(error) and error.shard == str(tmp_path / name)


@WORKERS
@pytest.mark.parametrize("name", EMPTY_NAMES)
@pytest.mark.parametrize("where", ["disk", "web"])
def test_an_empty_text_is_counted_and_warned_of_once(
    where: str, name: str, workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    suffix = Path(name).suffix
    for full in (0, 3):
        (tmp_path / f"{full}{suffix}").write_bytes(b'{"n": 1}\n')
    for empty in (1, 2):
        (tmp_path / f"{empty}{suffix}").touch()
    with testing.serve(tmp_path) as server:
        root = tmp_path if where == "disk" else server.url
        dataset = al.from_urls(f"{root}/{{0..3}}{suffix}").repeat(2)
        with al.DataLoader(dataset, num_workers=workers, persistent_workers=bool(workers)) as loader:
            for _ in range(2):
                assert len([*loader]) == 4
                assert loader.statistics.empty_shards == 2
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warned] == ["asyncloader.shards"]
    assert any(f"{root}/{empty}{suffix} has 0 bytes" in warned[0].getMessage() for empty in (1, 2))


def test_a_shard_that_an_index_says_to_be_empty_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n')
    (tmp_path / "b.jsonl").touch()
    al.build_index(f"{tmp_path}/", output=tmp_path / "asyncloader-index.json")
    loader = al.DataLoader(al.from_urls(f"{tmp_path}/"))
    assert len([*loader]) == 1
    assert loader.statistics.empty_shards == 0 and not caplog.records


# --- CSV that something else than commas separates ---


def test_csv_with_semicolons_is_refused_until_the_delimiter_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;eins, zwei\n")
    error = error_of(al.DataLoader(al.from_urls(tmp_path / "a.csv")), al.FormatError)
    assert "pass delimiter=';'" in str(error)
    dataset = al.from_urls(tmp_path / "a.csv", delimiter=";")
    (batch,) = al.DataLoader(dataset)
    assert batch == {"id": ["1"], "text": ["eins, zwei"]}
    assert "delimiter=';'" in repr(dataset)
    with pytest.raises(ValueError, match="delimiter"):
        al.DataLoader(al.from_urls(tmp_path / "a.csv", delimiter="|")).load_state_dict(
            al.DataLoader(dataset).state_dict()
        )


def test_a_delimiter_is_for_csv(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ValueError, match="if they are CSV, pass format='csv'"):
        al.from_urls(tmp_path / "a.jsonl", delimiter=";")
    with pytest.raises(ValueError, match="delimiter should be one character"):
        al.from_urls(tmp_path / "a.csv", delimiter="::")
