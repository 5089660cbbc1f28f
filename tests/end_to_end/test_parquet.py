"""Parquet and Arrow shards through the whole pipeline, from disk, HTTP and S3, without and with workers."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset  # for filters: half a second in each worker, or here once for all
import pytest
from columnar_files import arrow_files, parquet_files, plain, read_by_pyarrow, rows_of, written

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main
from asyncloader.errors import FormatError, StoreError

from .conftest import Place

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = [0, 2]


@dataclass(frozen=True)
class Shards:
    contents: dict[str, bytes]
    rows: list[str]


@pytest.fixture(scope="module")
def shards() -> Shards:
    """Of every writer, codec and encoding, and their rows by pyarrow's own reading.

    In many row groups those of one codec and one encoding: formats/test_columnar has them all.
    """
    contents = {
        f"{name}.parquet": content
        for name, content in parquet_files()
        if not name.endswith("-50") or name.startswith(("pyarrow-zstd", "pyarrow-delta"))
    }
    contents |= {f"{name}.arrow": content for name, content in arrow_files()}
    return Shards(
        contents, sorted(told(row) for each in contents.values() for row in rows_of(read_by_pyarrow(each)))
    )


def told(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.fixture(scope="module")
def places(
    shards: Shards, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Any]]:
    """URLs and options of the shards on a disk, an HTTP server or S3, put there when first asked for."""
    folder = tmp_path_factory.mktemp("shards")
    made: dict[str, tuple[list[str], dict[str, Any]]] = {}
    with ExitStack() as stack:

        def place(name: str) -> tuple[list[str], dict[str, Any]]:
            if name not in made:
                made[name] = {"disk": on_disk, "http": on_http, "s3": on_s3}[name]()
            return made[name]

        def on_disk() -> tuple[list[str], dict[str, Any]]:
            for key, content in shards.contents.items():
                (folder / key).write_bytes(content)
            return [str(folder / key) for key in shards.contents], {}

        def on_http() -> tuple[list[str], dict[str, Any]]:
            server = stack.enter_context(testing.serve(shards.contents))
            return [server.url_of(key) for key in shards.contents], {}

        def on_s3() -> tuple[list[str], dict[str, Any]]:
            moto: Place = request.getfixturevalue("moto")
            for key, content in shards.contents.items():
                moto.put(f"columnar/{key}", content)
            urls = [f"{moto.url}columnar/{key}" for key in shards.contents]
            return urls, {"storage_options": moto.options}

        yield place


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("place", "workers"),
    [
        ("disk", 2),
        ("http", 0),
        pytest.param("s3", 2, marks=pytest.mark.servers),
        # Workers know of no place: they take turns over them.
        pytest.param("disk", 0, marks=pytest.mark.slow),
        pytest.param("http", 2, marks=pytest.mark.slow),
        pytest.param("s3", 0, marks=pytest.mark.slow),
    ],
)
def test_every_value_arrives_as_pyarrow_reads_it(
    places: Callable[[str], Any], shards: Shards, place: str, workers: int
) -> None:
    urls, options = places(place)
    recipe = al.from_urls(urls, **options)
    # The runtime below the client of object stores stays with the process.
    with testing.check_leaks(allow=lambda left: place == "s3" and "event" in left):
        loader = al.DataLoader(recipe, 64, num_workers=workers, collate_fn=list)
        assert sorted(told(plain(row)) for batch in loader for row in batch) == shards.rows


def tokens(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 40, rows)
    return pa.table(
        {
            "id": np.arange(rows) + seed * rows,
            "tokens": pa.array([rng.integers(0, 1000, length) for length in lengths], pa.list_(pa.int32())),
            "label": rng.integers(0, 5, rows),
        }
    )


@pytest.mark.parametrize(
    ("kind", "recipe"), [("parquet", "filtered"), ("parquet", "shuffled"), ("arrow", "filtered")]
)
def test_every_cut_resumes(
    tmp_path: Path, kind: str, recipe: str, assert_resumes: Callable[..., None]
) -> None:
    for shard in range(3):
        out = io.BytesIO()
        if kind == "parquet":
            out.write(written(tokens(7 + shard, shard), row_group_size=4))
        else:
            with pa.ipc.new_file(out, tokens(1).schema) as writer:
                writer.write_table(tokens(7 + shard, shard), max_chunksize=4)
        (tmp_path / f"{shard}.{kind}").write_bytes(out.getvalue())
    filters = [("label", "!=", 2)] if recipe == "filtered" else None

    def make_loader(workers: int) -> al.DataLoader[Any]:
        dataset = al.from_urls(f"{tmp_path}/*.{kind}", columns=["tokens", "id"], filters=filters)
        if recipe == "shuffled":
            dataset = dataset.shuffle(11, seed=3)
        return al.DataLoader(dataset, 4, num_workers=workers, lanes=2, collate_fn=al.Pad({"tokens": 0}))

    assert_resumes(make_loader, workers=(0, 2))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_projection_asks_for_its_own_bytes_and_a_second_epoch_for_no_footer(workers: int) -> None:
    rng = np.random.default_rng(0)
    wide = pa.table({f"c{number}": rng.integers(0, 1 << 60, 20_000) for number in range(20)})
    content = written(wide, row_group_size=5_000)
    with testing.serve({f"{number}.parquet": content for number in range(4)}) as server:
        urls = [server.url_of(f"{number}.parquet") for number in range(4)]
        # A busy machine hedges, and requests are counted.
        recipe = al.from_urls(urls, columns=["c7"], network=al.NetworkPolicy(hedge=False))
        loader = al.DataLoader(recipe, 1000, num_workers=workers)
        for epoch in range(2):
            before, sent = len(server.requests), server.counters.bytes_sent
            values = np.concatenate([batch["c7"].numpy() for batch in loader])
            assert sorted(values) == sorted(wide.column("c7").to_pylist() * 4)
            footer = 1 if epoch == 0 or workers else 0  # what a worker knows goes with it
            assert len(server.requests) - before == 4 * (1 + footer + 4)
            assert server.counters.bytes_sent - sent < 4 * len(content) / 10


def test_several_row_groups_are_in_flight() -> None:
    rng = np.random.default_rng(0)
    wide = pa.table({f"c{number}": rng.integers(0, 1 << 60, 10_000) for number in range(20)})
    with testing.serve({"x.parquet": written(wide, row_group_size=1000)}, latency_s=0.5) as server:
        loader = al.DataLoader(al.from_urls(server.url_of("x.parquet"), columns=["c7"], index=None), 100)
        assert len(list(loader)) == 100
        times = sorted(request.time_s for request in server.requests)
    assert len(times) == 2 + 10
    assert times[2 + 4] < times[2] + 0.5  # before the first of them was answered


def test_row_groups_without_such_a_row_are_not_requested() -> None:
    content = written(tokens(3000), row_group_size=300, compression="none")
    with testing.serve({"x.parquet": content}) as server:
        wanted = pc.field("id") >= 2990
        recipe = al.from_urls(server.url_of("x.parquet"), columns=["label"], filters=wanted, index=None)
        (batch,) = al.DataLoader(recipe, 100)
        assert batch["label"].tolist() == tokens(3000).column("label").to_pylist()[2990:]
        assert len(server.requests) == 4  # head, footer, and the two columns of one row group


def test_whole_shards_are_kept_in_the_cache(tmp_path: Path) -> None:
    content = written(tokens(3000), row_group_size=300)
    with testing.serve({"x.parquet": content}) as server:
        recipe = al.from_urls(server.url_of("x.parquet"), columns=["id"], cache_dir=tmp_path)
        for expected in (1, 0):
            before = len(server.requests)
            ids = [int(each) for batch in al.DataLoader(recipe, 100) for each in batch["id"]]
            assert ids == list(range(3000))
            assert len(server.requests) - before == expected


def test_an_index_counts_rows_whatever_is_read_of_them(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.parquet").write_bytes(written(tokens(50), row_group_size=20))
    (tmp_path / "c.arrow").write_bytes(dict(arrow_files())["pyarrow-stream-None-7"])
    assert main(["index", f"{tmp_path}/*.parquet", f"{tmp_path}/c.arrow"]) == 0
    text = (tmp_path / "asyncloader-index.json").read_text()
    assert sorted(map(int, re.findall(r'"samples": *(\d+)', text))) == [50, 50, 100]
    recipe = al.from_urls([tmp_path / "a.parquet", tmp_path / "b.parquet"], columns=["id"])
    loader = al.DataLoader(recipe, 10)
    assert len(loader) == 10 == len(list(loader))
    some = al.from_urls(tmp_path / "a.parquet", columns=["id"], filters=[("id", "<", 5)])
    assert len([each for batch in al.DataLoader(some, 10) for each in batch["id"]]) == 5
    with pytest.raises(TypeError, match="filters= keeps"):
        len(al.DataLoader(some, 10))
    content = written(tokens(51), row_group_size=20)
    size = (tmp_path / "a.parquet").stat().st_size
    (tmp_path / "asyncloader-index.json").write_text(text.replace(str(size), str(len(content))))
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(FormatError, match="promises 50 samples of this shard, found 51"):
        list(al.DataLoader(al.from_urls(tmp_path / "a.parquet", columns=["id"]), 10))


def test_a_shard_that_changes_under_its_plan_is_an_error() -> None:
    content = written(tokens(3000), row_group_size=300)
    with (
        testing.serve({"x.parquet": content}, [testing.ChangeObject(bytes(len(content)), after=2)]) as server,
        pytest.raises(StoreError, match="was changed while it was being read"),
    ):
        list(al.DataLoader(al.from_urls(server.url_of("x.parquet")), 100, collate_fn=list))


def test_a_loop_that_breaks_leaves_nothing_behind() -> None:
    with (
        testing.serve({"x.parquet": written(tokens(3000), row_group_size=30)}, latency_s=0.01) as server,
        testing.check_leaks(),
    ):
        for _ in al.DataLoader(al.from_urls(server.url_of("x.parquet")), 10, collate_fn=list):
            break
        assert server.wait_idle(2)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_bad_shard_is_named(tmp_path: Path, workers: int) -> None:
    (tmp_path / "x.parquet").write_bytes(written(tokens(100))[:-5])
    loader = al.DataLoader(al.from_urls(tmp_path / "x.parquet"), 10, num_workers=workers, collate_fn=list)
    with pytest.raises(FormatError, match="expected the magic") as caught:
        list(loader)
    assert caught.value.shard == str(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("x.parquet.gz", {}, ValueError, "'x.parquet.gz' is compressed as a whole"),
        ("x.tar", {"columns": ["a"]}, ValueError, "columns chooses from the columns of parquet, arrow"),
        (
            "x.npz",
            {"filters": [("a", ">", 1)]},
            ValueError,
            "filters chooses from .* there are shards of npz",
        ),
        ("x.jsonl", {"filters": [("a", ">", 1)]}, ValueError, r"shards of jsonl; use \.select"),
        ("x.parquet", {"columns": []}, ValueError, "at least one column"),
        ("x.parquet", {"columns": "abc"}, TypeError, "columns should be a list of names, but got 'abc'"),
        ("x.parquet", {"columns": ["a", "a"]}, ValueError, "names one twice"),
        ("x.parquet", {"columns": [1]}, TypeError, "columns should be a list of names, but got int"),
        ("x.parquet", {"filters": "a > 1"}, TypeError, "filters should be an expression"),
        ("x.parquet", {"filters": [("a",)]}, ValueError, "filters should be an expression"),
        ("x.parquet", {"filters": [("a", "in", "abc")]}, ValueError, r"write \('a', 'in', \['abc'\]\)"),
        (
            "x.parquet",
            {"filters": [[("b", ">", 1), ("a", "not in", "a")]]},
            ValueError,
            "takes a list of values",
        ),
        (
            "x.parquet",
            {"filters": ("a", "==", "web")},
            ValueError,
            r"should be a list of tuples, but got one alone: write filters=\[\('a', '==', 'web'\)\]",
        ),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_read(
    name: str, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        al.from_urls(f"https://nowhere.invalid/{name}", **arguments)


@pytest.mark.parametrize("workers", WORKERS)
def test_filters_that_nothing_meets_are_told_once_an_epoch(tmp_path: Path, workers: int) -> None:
    (tmp_path / "x.parquet").write_bytes(written(tokens(100)))
    recipe = al.from_urls(tmp_path / "x.parquet", columns=["id"], filters=[("id", "<", 0)])
    loader = al.DataLoader(recipe, 10, num_workers=workers)
    with pytest.warns(UserWarning, match=r"an epoch had no batch: filters=\(id < 0\) kept no row") as told:
        assert list(loader) == []
    assert [(each.filename, len(told)) for each in told] == [(__file__, 1)]
    recipe = al.from_urls(tmp_path / "x.parquet", columns=["id"], filters=[("id", "<", 10)])
    loader = al.DataLoader(recipe, 10, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    resumed = al.DataLoader(recipe, 10, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    iterator.close()
    assert list(resumed) == [], "the rest of an epoch may be nothing"


def test_filters_of_a_component_that_nothing_meets_are_told_too(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(written(tokens(100)))
    recipe = al.from_urls(tmp_path / "x.parquet", columns=["id"], filters=[("id", "<", 0)])
    with pytest.warns(UserWarning, match=r"an epoch had no batch: filters=\(id < 0\) kept no row"):
        assert list(al.DataLoader(al.concat([recipe, recipe]), 10)) == []


def test_a_folder_does_not_pass_over_a_shard_that_is_compressed_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(written(tokens(10)))
    (tmp_path / "b.parquet.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'b.parquet.gz' is compressed as a whole"):
        al.from_urls(f"{tmp_path}/")


def test_without_pyarrow_the_message_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import asyncloader as al\n"
        "al.from_urls('https://nowhere.invalid/x.tar', index=None)\n"
        "al.from_urls('https://nowhere.invalid/x.parquet')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install asyncloader[parquet]" in run.stderr.splitlines()[-1]


def test_describing_a_recipe_does_not_import_pyarrow() -> None:
    program = (
        "import sys, asyncloader as al\n"
        "al.from_urls('https://nowhere.invalid/x.parquet', columns=['a'], index=None)\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_state_belongs_to_its_columns_and_filters(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(written(tokens(100)))
    loader = al.DataLoader(al.from_urls(tmp_path / "x.parquet", columns=["id"], filters=[("id", ">", 3)]), 10)
    next(iter(loader))
    state = loader.state_dict()
    other = al.DataLoader(al.from_urls(tmp_path / "x.parquet", columns=["id"]), 10)
    with pytest.raises(ValueError, match="filters"):
        other.load_state_dict(state)


PASSING = [
    testing.CutAt(700, times=3), testing.Reset(700, times=3), testing.HangUp(times=3),
    testing.Status(503, times=3), testing.Capacity(2),
    testing.WrongRange(512, times=3), testing.WrongLength(1000, times=3), testing.NoLength(500, times=3),
    testing.WrongETag(after=1, times=2), testing.IgnoreRange(), testing.Redirect("/elsewhere"),
]  # fmt: skip


# Without workers and with them in turn; the table of faults (test_faults) has Parquet too.
@pytest.mark.parametrize(
    ("fault", "workers"),
    [
        pytest.param(
            fault,
            workers,
            id=f"{type(fault).__name__}-{workers}",
            marks=pytest.mark.slow if (nth + workers // 2) % 2 else [],
        )
        for nth, fault in enumerate(PASSING)
        for workers in WORKERS
    ],
)
def test_faults_that_pass_lose_nothing(fault: testing.Fault, workers: int) -> None:
    fault = replace(fault, key="x.parquet")
    content = written(tokens(3000), row_group_size=100, compression="none", use_dictionary=False)
    network = al.NetworkPolicy(backoff_s=0.02)
    with testing.serve({"x.parquet": content, "elsewhere": content}, [fault]) as server:
        recipe = al.from_urls(server.url_of("x.parquet"), columns=["id", "tokens"], network=network)
        rows = [
            row for batch in al.DataLoader(recipe, 100, num_workers=workers, collate_fn=list) for row in batch
        ]
        assert [plain(row) for row in rows] == tokens(3000).select(["id", "tokens"]).to_pylist()
        assert isinstance(fault, testing.Capacity) or any(request.faults for request in server.requests)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (testing.CutAt(700), "the connection was cut before the promised length"),
        (testing.Status(404), "the server answered 404 Not Found"),
        (testing.Status(404, after=2), "the server answered 404 Not Found"),
        (testing.WrongETag(after=1), "the object was changed while it was being read"),
        (testing.WrongRange(512), "but the server sent Content-Range"),
        (testing.GzipEncoding(), "the server sent Content-Encoding gzip"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, testing.Fault) else "",
)
def test_faults_that_stay_are_errors_of_the_shard(fault: testing.Fault, says: str) -> None:
    content = written(tokens(3000), row_group_size=100, compression="none", use_dictionary=False)
    network = al.NetworkPolicy(attempts=3, backoff_s=0.001)
    with testing.serve({"x.parquet": content}, [fault]) as server:
        with pytest.raises(StoreError, match=says) as caught:
            list(
                al.DataLoader(al.from_urls(server.url_of("x.parquet"), network=network), 100, collate_fn=list)
            )
        assert caught.value.shard == server.url_of("x.parquet")
        assert server.wait_idle(2)
