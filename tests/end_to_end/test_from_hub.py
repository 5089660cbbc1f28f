"""Data sets of the hub by name: splits are found, and nothing is read for one that is not there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_files import hub_of

import asyncloader as al
from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.pipeline.dataset import stages_of

CONVERTED = "refs/convert/parquet"


def parquet(first: int, rows: int) -> bytes:
    out = io.BytesIO()
    table = pa.table({"id": range(first, first + rows), "text": [f"text {n}" for n in range(rows)]})
    pq.write_table(table, out, row_group_size=7)
    return out.getvalue()


TEXTS = {
    CONVERTED: {
        "de/train/0000.parquet": parquet(0, 20),
        "en/train/0000.parquet": parquet(100, 20),
        "en/train/0001.parquet": parquet(120, 13),
        "en/test/0000.parquet": parquet(900, 5),
        "en/partial-large/0000.parquet": parquet(700, 3),
        ".gitattributes": b"x",
    },
    "main": {
        "en/large-00000-of-00002.parquet": parquet(500, 4),
        "en/large-00001-of-00002.parquet": parquet(504, 4),
        "en/train.jsonl": b"{}\n",
        "README.md": b"# Texts",
    },
    "v1": {"train-00000-of-00001.parquet": parquet(40, 2)},
}


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    contents = hub_of("me/texts", TEXTS)
    contents |= hub_of("me/pictures", {"main": {"data/train/0.png": b"x"}})
    contents |= hub_of("me/own", {"main": {"data/train-00000-of-00001.parquet": parquet(0, 9)}})
    with testing.serve(contents) as server:
        yield server


@pytest.fixture(autouse=True)
def no_hub_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nothing"))


def ids_of(recipe: al.Dataset) -> list[int]:
    return [row["id"] for row in recipe.head(1000)]


def test_a_split_is_read_from_the_conversion(server: testing.Server) -> None:
    options = {"storage_options": {"endpoint": server.url}}
    recipe = al.from_hub("me/texts", config="en", columns=["id"], **options)
    assert repr(recipe).startswith(
        "Dataset(Shards(2 parquet, first='hf://datasets/me/texts@refs/convert/parquet/en/train/0000.parquet'"
    )
    files = (TEXTS[CONVERTED][f"en/train/000{number}.parquet"] for number in range(2))
    assert stages_of(recipe).source.sizes.tolist() == [*map(len, files)], "as listed"  # type: ignore[attr-defined]
    assert [*recipe.head(1)[0]] == ["id"]
    assert ids_of(recipe) == [*range(100, 133)]
    assert ids_of(
        al.from_hub("me/texts", split="test", config="en", filters=[("id", ">", 902)], **options)
    ) == [903, 904]


def test_what_is_not_converted_whole_is_read_from_the_data_set(server: testing.Server) -> None:
    options = {"storage_options": {"endpoint": server.url}}
    assert ids_of(al.from_hub("me/texts", split="large", config="en", **options)) == [*range(500, 508)]


@pytest.mark.slow
def test_any_split_and_revision_can_be_named(server: testing.Server) -> None:
    options = {"storage_options": {"endpoint": server.url}}
    assert ids_of(al.from_hub("me/texts", split="partial-large", config="en", **options)) == [700, 701, 702]
    assert ids_of(al.from_hub("me/texts", revision="v1", **options)) == [40, 41]


def test_counts_are_of_footers(server: testing.Server) -> None:
    options = {"storage_options": {"endpoint": server.url}}
    before = len(server.requests)
    recipe = al.from_hub("me/texts", config="en", counts=True, **options)
    assert len(server.requests) - before <= 1 + 2 * 2
    loaders = [al.DataLoader(recipe, 4, rank=rank, world_size=3, collate_fn=list) for rank in range(3)]
    assert [len(loader) for loader in loaders] == [3, 3, 3]
    found = [row["id"] for loader in loaders for batch in loader for row in batch]
    assert sorted(found) == [*range(100, 133)]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        (
            "me/texts", {},
            "several configurations: choose one by config=; 'refs/convert/parquet' has 'de'",
        ),
        (
            "me/texts", {"config": "fr"},
            "me/texts has no split 'train' of config 'fr' in Parquet; 'refs/convert/parquet' has 'de': "
            "'train' (1 file); 'en': 'partial-large' (1 file), 'test' (1 file), 'train' (2 files); 'main' "
            "has 'en': 'large' (2 files)",
        ),
        pytest.param(
            "me/own", {"split": "test"},
            "me/own has no split 'test' in Parquet; 'main' has 'default': 'train' (1 file)",
            marks=pytest.mark.slow,
        ),
        (
            "me/texts", {"config": "en", "split": "large", "revision": CONVERTED},
            "has no split 'large' of config 'en'",
        ),
        ("me/pictures", {}, "me/pictures has no Parquet files on the hub, and no conversion to them; name"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_before_a_shard_is_read(
    server: testing.Server, name: str, arguments: dict[str, Any], says: str
) -> None:
    before = len(server.requests)
    with pytest.raises(ValueError) as caught:
        al.from_hub(name, storage_options={"endpoint": server.url}, **arguments)
    assert says in str(caught.value)
    assert all("/resolve/" not in request.path for request in server.requests[before:])


@pytest.mark.parametrize(("name", "revision"), [("me/nothing", None), ("me/texts", "v9")])
def test_a_data_set_that_is_not_there_is_an_error_of_the_store(
    server: testing.Server, name: str, revision: str | None
) -> None:
    with pytest.raises(StoreError) as caught:
        al.from_hub(name, revision=revision, storage_options={"endpoint": server.url})
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("squad", {}, ValueError, "should be named 'OWNER/NAME'"),
        ("me/texts/en", {}, ValueError, "should be named 'OWNER/NAME'"),
        ("me/texts", {"revision": "a@b"}, ValueError, "should be named 'OWNER/NAME'"),
        ("me/texts", {"config": 3}, TypeError, "config should be a string, but got int"),
        ("me/texts", {"split": None}, TypeError, "split should be a string, but got NoneType"),
        ("me/texts", {"columns": "id"}, TypeError, "columns should be a list of names"),
        (
            "me/texts",
            {"storage_options": {"tokens": "SENTINEL"}},
            ValueError,
            "unknown option 'tokens' for hf://",
        ),
        ("me/texts", {"network": 3}, TypeError, "network should be a NetworkPolicy"),
    ],
)
def test_wrong_calls_ask_nobody(
    name: str, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        al.from_hub(name, **arguments)


def test_the_token_is_sent_to_the_hub(server: testing.Server) -> None:
    before = len(server.requests)
    options = {"endpoint": server.url, "token": "secret-of-mine"}
    assert ids_of(al.from_hub("me/own", storage_options=options)) == [*range(9)]
    sent = server.requests[before:]
    assert all(request.headers.get("authorization") == "Bearer secret-of-mine" for request in sent)


@pytest.mark.slow
@pytest.mark.usefixtures("fork_server")
def test_a_data_set_resumes(server: testing.Server, assert_resumes: Callable[..., None]) -> None:
    recipe = al.from_hub(
        "me/texts", config="en", columns=["id"], counts=True, storage_options={"endpoint": server.url}
    ).shuffle(9, seed=1)
    assert_resumes(lambda workers: al.DataLoader(recipe, 5, lanes=2, num_workers=workers), workers=(0, 2))
