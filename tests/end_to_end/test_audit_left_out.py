"""What operators leave out is named by them, so that a sample which was lost among it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import asyncloader as al
from asyncloader.cli import main

from .restarts import judged, restart_alone

pytestmark = pytest.mark.usefixtures("fork_server")

COUNTS = (7, 3, 12, 5, 9, 1)
SAMPLES = sum(COUNTS)
EVEN = sum((count + 1) // 2 for count in COUNTS)
LANES = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thinned")
    for shard, count in enumerate(COUNTS):
        lines = [json.dumps({"n": 100 * shard + at}) for at in range(count)]
        (folder / f"{shard}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def lines_of(folder: Path) -> al.Dataset:
    return al.from_urls(str(folder / "*.jsonl"))


def is_even(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2 == 0)


def is_wanted(sample: dict[str, Any]) -> bool:
    return False


def are_even(columns: dict[str, Any]) -> Any:
    return columns["n"] % 2 == 0


class Case(NamedTuple):
    """A recipe that leaves samples out.

    Attributes:
        make: The recipe.
        came: How many samples an epoch delivers.
        left: How many each operator leaves out.
        drop_last: Of the loader.
    """

    make: Callable[[Path], al.Dataset]
    came: int
    left: dict[str, int]
    drop_last: bool = False


FILTERED = {"filter(is_even)": SAMPLES - EVEN}
CASES = {
    "behind a window": Case(lambda folder: lines_of(folder).shuffle(6).filter(is_even), EVEN, FILTERED),
    "before a window": Case(lambda folder: lines_of(folder).filter(is_even).shuffle(6), EVEN, FILTERED),
    "in chunks": Case(
        lambda folder: lines_of(folder).shuffle(5).filter_batches(are_even, batch_size=3),
        EVEN,
        {"filter_batches(are_even)": SAMPLES - EVEN},
    ),
    "everything": Case(lambda folder: lines_of(folder).filter(is_wanted), 0, {"filter(is_wanted)": SAMPLES}),
    "repeated": Case(
        lambda folder: lines_of(folder).filter(is_even).repeat(2),
        2 * EVEN,
        {"filter(is_even)": 2 * (SAMPLES - EVEN)},
    ),
    "in a mixture": Case(
        lambda folder: al.mix(
            {"all": lines_of(folder), "even": lines_of(folder).filter(is_even).shuffle(3)}, stop="all"
        ).shuffle(4),
        SAMPLES + EVEN,
        FILTERED,
    ),
    "before a zip": Case(
        lambda folder: al.zip_datasets(
            {"a": lines_of(folder).filter(is_even), "b": lines_of(folder).filter(is_even)}
        ),
        EVEN,
        FILTERED,
    ),
}
NAMED = pytest.mark.parametrize("name", CASES)


def loader_of(case: Case, folder: Path, audit: Path, **options: Any) -> al.DataLoader[Any]:
    given = {"lanes": LANES, "collate_fn": len, "drop_last": case.drop_last, **options}
    return al.DataLoader(case.make(folder), 3, audit=audit, **given)


def read(loader: al.DataLoader[Any]) -> None:
    with loader:
        for _ in loader:
            pass


@NAMED
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings(
    "ignore:the epoch .*:UserWarning", "ignore:.*without a batch.*", "ignore:.*kept.*"
)
def test_operators_name_what_they_leave_out(name: str, workers: int, corpus: Path, tmp_path: Path) -> None:
    case = CASES[name]
    read(loader_of(case, corpus, tmp_path, num_workers=workers))
    verdict = judged(tmp_path)
    assert (verdict.verdict, verdict.samples, verdict.findings) == ("exact", case.came, ()), str(verdict)
    assert (verdict.left_out_by, verdict.left_out) == (case.left, sum(case.left.values()))
    named = ", ".join(f"{count} by {by}" for by, count in case.left.items())
    assert f"more were left out: {named}" in str(verdict)


def test_drop_last_names_the_rest_of_each_lane(corpus: Path, tmp_path: Path) -> None:
    read(al.DataLoader(lines_of(corpus), 4, drop_last=True, collate_fn=len, lanes=LANES, audit=tmp_path))
    verdict = judged(tmp_path)
    assert verdict.verdict == "exact" and verdict.samples % 4 == 0
    assert verdict.left_out_by == {"drop_last": SAMPLES - verdict.samples}


@NAMED
@pytest.mark.parametrize("after", [1, 2])
def test_what_is_left_out_again_after_a_restart_counts_once(
    name: str, after: int, corpus: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    if not case.came:
        return
    verdict = restart_alone(
        lambda rank, size: loader_of(case, corpus, tmp_path, rank=rank, world_size=size), tmp_path, after
    )
    assert (verdict.verdict, verdict.samples, verdict.left_out_by) == ("exact", case.came, case.left), str(
        verdict
    )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.came])
@pytest.mark.parametrize("what", ["samples", "left_out"])
def test_a_sample_that_nobody_delivered_or_left_out_is_found_among_those(
    name: str, what: str, corpus: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    read(loader_of(case, corpus, tmp_path))
    (path,) = tmp_path.glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    row = next(row for row in rows if row.get(what))
    *_, (_, number, repetition), runs = row[what][0]
    lost, runs[0] = runs[0], runs[0] + 1
    if runs[0] == runs[1]:
        del runs[:2]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    verdict = judged(tmp_path)
    assert verdict.verdict == "wrong"
    (finding,) = verdict.findings
    assert (finding.what, finding.first, finding.stop) == ("never", lost, lost + 1)
    assert finding.shard == str(corpus / f"{number}.jsonl") and finding.repetition == repetition


def test_what_cannot_be_named_is_counted_beside_what_is(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in corpus.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    recipe = lines_of(folder).filter(is_even).take(8)
    read(al.DataLoader(recipe, 3, collate_fn=len, lanes=2, audit=tmp_path / "audit"))
    verdict = judged(tmp_path / "audit")
    assert verdict.verdict == "exact" and verdict.left_out is None
    assert "were left out, and without an index it is not known how many take(8) left out" in str(verdict)
    al.build_index(str(folder / "*.jsonl"))
    verdict = judged(tmp_path / "audit", index=folder / "asyncloader-index.json")
    assert verdict.left_out == SAMPLES - 8
    assert 0 < verdict.left_out_by["filter(is_even)"] < SAMPLES - 8
    assert "by take(8) (which ones is not recorded)" in str(verdict)


def test_what_was_left_out_is_named_by_shard_and_samples(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(loader_of(CASES["behind a window"], corpus, tmp_path, num_workers=2))
    assert judged(tmp_path).left_out_samples == ()
    named = judged(tmp_path, left_out=True).left_out_samples
    assert {(each.shard, each.first, each.stop) for each in named} == {
        (str(corpus / f"{shard}.jsonl"), at, at + 1)
        for shard, count in enumerate(COUNTS)
        for at in range(1, count, 2)
    }
    assert main(["audit", str(tmp_path), "--left-out"]) == 0
    assert f"left out by filter(is_even): sample 1 of {corpus / '0.jsonl'}" in capsys.readouterr().out
