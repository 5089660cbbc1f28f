"""Names by the thousand: what is told of a run holds for each, and plain ones take no step each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.pipeline.dataset import stages_of
from asyncloader.stores.names import lie_flat, runs_of, shared_folder
from asyncloader.stores.urls import origin_of, scheme_of

MANY = 10_000

_NAMES = st.lists(
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(["", "s3://", "s3:/", "S3://", "https://h", "https://h/", "/d/", "d/", "a:b/"]),
            st.text("ab/.:\n?", max_size=6),
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(_NAMES)
@example(["s3://a/x", "s3://b/x"])
@example(["https://a/x", "https:/b"])
def test_the_folder_of_a_run_settles_scheme_and_server_of_each(names: list[str]) -> None:
    folder = shared_folder(names)
    assert folder == "" or folder.endswith("/")
    assert all(name.startswith(folder) for name in names)

    def meaning(name: str) -> Any:
        try:
            return scheme_of(name), origin_of(name)
        except ValueError as error:
            return str(error)

    if folder and not isinstance(meaning(names[0]), str):
        assert len({meaning(name) for name in names}) == 1


@given(_NAMES)
def test_names_that_lie_flat_are_all_in_the_folder(names: list[str]) -> None:
    if lie_flat(names, shared_folder(names)):
        assert {name[: name.rfind("/") + 1] for name in names} == {shared_folder(names)}


def test_runs_are_all_names_in_order() -> None:
    names = [f"{number}" for number in range(MANY)]
    runs = [*runs_of(names)]
    assert [name for run in runs for name in run] == names and len(runs) > 1


GOOD = [f"s3://bucket/{number // 100:03}/{number:05}.tar" for number in range(MANY)]


@pytest.mark.parametrize(
    "bad",
    [
        "s4://bucket/a.tar", "s3:/bucket/a.tar", "s3://bucket/a::b.tar", "pipe:cat a.tar", "PIPE://a.tar",
        "https:///a.tar", "https://h:0/a.tar", "https://h/a-{0.tar", "https://h/*.tar", "s3://bucket/a",
        "s3://bucket/a.tar/b", "s3://bucket.tar", "", "a-%03d.tar", "a-{0-9}.tar", "/nowhere/*.tar",
        "/nowhere/", "~nobody/x", "https://h/a.tar?x=.b", "https://h/a?x=.tar", "s3://bucket/a-{9..1}.tar",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 5000, MANY])
def test_a_bad_name_among_thousands_has_the_error_that_it_has_by_itself(bad: str, place: int) -> None:
    def outcome(urls: list[str]) -> str:
        try:
            return repr(stages_of(al.from_urls(urls)).source.urls)
        except ValueError as error:
            return str(error)

    alone = outcome([bad])
    among = outcome([*GOOD[:place], bad, *GOOD[place:]])
    if alone.startswith("ShardNames"):
        assert among == f"ShardNames({MANY + 1})"
    else:
        assert among == alone


def test_names_of_many_kinds_are_all_there_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    names = [*GOOD, str(tmp_path / "a.tar"), *(f"https://h/{number}.jsonl.zst" for number in range(MANY))]
    source: Any = stages_of(al.from_urls(iter(names), index=None)).source
    assert source.urls == tuple(names)
    assert source.formats.runs == (("tar", MANY + 1), ("jsonl", MANY))


@pytest.mark.parametrize("root", ["s3://bucket/", "https://host/", "local"])
@pytest.mark.parametrize("indexed", [False, True])
def test_no_step_is_taken_for_each_of_many_plain_names(root: str, indexed: bool, tmp_path: Path) -> None:
    root = f"{tmp_path}/" if root == "local" else root
    names = [f"{root}{number:05}.tar" for number in range(MANY)]
    listed = [name.removeprefix(f"{tmp_path}/") for name in names]
    index = tmp_path / "index.json"
    entries = [
        {"name": name, "size_bytes": 9, "samples": 2, "sha256": "0" * 64, "offsets": [[1, 5]]}
        for name in listed
    ]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    index.write_text(f'{{"asyncloader_index": 1, "shards": [\n{lines}\n]}}\n')
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal steps
        steps += 1

    al.from_urls(names[0], index=None)  # imports
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        recipe = al.from_urls(names, index=index if indexed else None)
    finally:
        sys.setprofile(before)
    source: Any = stages_of(recipe).source
    assert len(source.urls) == MANY and source.is_indexed == indexed
    assert steps < MANY, f"{steps} calls for {MANY} names"
