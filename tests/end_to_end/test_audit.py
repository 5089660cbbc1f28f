"""What ranks record is what was delivered: proved over workers, ranks, operators, kills and restarts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import Programs
from waiting import until

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main
from asyncloader.plan.topology import Topology

from .restarts import judged, restart_alone

pytestmark = pytest.mark.usefixtures("fork_server")

COUNTS = (7, 3, 12, 5, 9, 1)
SAMPLES = sum(COUNTS)
LANES = 4

Recipe = Callable[[Path], al.Dataset]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines without an index, and Parquet; an index beside others is written where a test wants it."""
    folder = tmp_path_factory.mktemp("audited")
    for shard, count in enumerate(COUNTS):
        samples = [{"n": 100 * shard + at, "tokens": [1] * ((at * 3) % 5)} for at in range(count)]
        (folder / f"{shard}.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        tokens = pa.array([sample["tokens"] for sample in samples], pa.list_(pa.int64()))
        table = pa.table({"n": pa.array([sample["n"] for sample in samples], pa.int64()), "tokens": tokens})
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=4)
    return folder


def _lines(folder: Path) -> al.Dataset:
    return al.from_urls(str(folder / "*.jsonl"))


def _rows(folder: Path) -> al.Dataset:
    return al.from_urls(str(folder / "*.parquet"))


def _is_even(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2 == 0)


def _own(topology: Topology) -> Any:
    return topology.split([{"n": at, "tokens": [at]} for at in range(23)])


#: Recipes, and how many samples an epoch of each delivers.
RECIPES: dict[str, tuple[Recipe, int]] = {
    "in order": (_lines, SAMPLES),
    "shuffled": (lambda folder: _lines(folder).shuffle(6, seed=1), SAMPLES),
    "shuffled twice": (lambda folder: _rows(folder).shuffle(5, seed=1).shuffle(4, seed=2), SAMPLES),
    "repeated": (lambda folder: _lines(folder).shuffle(6).repeat(3), 3 * SAMPLES),
    "filtered": (lambda folder: _lines(folder).shuffle(6).filter(_is_even), 21),
    "taken": (lambda folder: _lines(folder).take(8), 8),
    "in chunks": (lambda folder: _rows(folder).map_batches(dict, batch_size=3).shuffle(4), SAMPLES),
    "mixed": (
        lambda folder: al.mix({"a": _lines(folder), "b": _rows(folder).shuffle(3)}, stop="all").shuffle(4),
        2 * SAMPLES,
    ),
    "one after another": (
        lambda folder: al.concat(
            [_lines(folder).shuffle(4), al.mix([_rows(folder), _lines(folder)], stop="all")]
        ),
        3 * SAMPLES,
    ),
    "side by side": (lambda folder: al.zip_datasets({"a": _lines(folder), "b": _rows(folder)}), SAMPLES),
    "own": (lambda folder: al.from_iterable(_own).shuffle(3), 23),
}

BATCHINGS: dict[str, dict[str, Any]] = {
    "fixed": {"batch_size": 4, "collate_fn": len},
    "single": {"batch_size": None},
    "packed": {"batching": al.Pack(length=6), "collate_fn": len},
    "packed pools": {"batching": al.Pack(length=6, pool=8), "collate_fn": len},
    "tokens": {"batching": al.TokenBatches(length="tokens", max_tokens=8, pool=6), "collate_fn": len},
}


def _loader(recipe: al.Dataset, audit: Path, batching: str = "fixed", **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(recipe, **{"lanes": LANES, "audit": audit, **BATCHINGS[batching], **options})


def _read(loaders: Sequence[al.DataLoader[Any]], most: int | None = None) -> None:
    """A pass of each, or the first batches of it, after which it is left."""
    for loader in loaders:
        with loader:
            for number, _ in enumerate(loader, 1):
                if number == most:
                    break


def _worlds() -> list[Any]:
    """Each recipe on one rank or two, with or without workers, in turn; all of them in the slow tests."""
    return [
        pytest.param(
            name,
            ranks,
            workers,
            marks=[] if (ranks, workers) == ((1, 0), (2, 0), (1, 2), (2, 2))[nth % 4] else pytest.mark.slow,
            id=f"{name}-{ranks}-{workers}",
        )
        for (nth, name), ranks, workers in product(enumerate(RECIPES), (1, 2), (0, 2))
    ]


@pytest.mark.parametrize(("name", "ranks", "workers"), _worlds())
def test_each_sample_of_an_epoch_is_proved_once(
    name: str, ranks: int, workers: int, corpus: Path, tmp_path: Path
) -> None:
    make, samples = RECIPES[name]
    _read(
        [
            _loader(make(corpus), tmp_path, rank=rank, world_size=ranks, num_workers=workers)
            for rank in range(ranks)
        ]
    )
    verdict = judged(tmp_path)
    assert (verdict.verdict, verdict.samples, verdict.findings) == ("exact", samples, ()), str(verdict)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_batching_tells_what_it_delivers(batching: str, corpus: Path, tmp_path: Path) -> None:
    recipe = _lines(corpus).filter(lambda sample: True) if batching == "single" else _lines(corpus).shuffle(6)
    _read([_loader(recipe, tmp_path, batching, num_workers=2)])
    assert judged(tmp_path).samples == SAMPLES
    assert judged(tmp_path).verdict == "exact"


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param(name, after, marks=pytest.mark.slow if (nth + after // 2) % 2 else [])
        for (nth, name), after in product(enumerate(RECIPES), (1, 3))
    ],
)
def test_what_comes_again_after_a_restart_counts_once(
    name: str, after: int, corpus: Path, tmp_path: Path
) -> None:
    make, samples = RECIPES[name]
    verdict = restart_alone(
        lambda rank, size: _loader(make(corpus), tmp_path, rank=rank, world_size=size),
        tmp_path,
        1 if name == "taken" else after,
    )
    assert (verdict.verdict, verdict.samples, verdict.ranks) == ("exact", samples, (0, 1)), str(verdict)


_KILLED = """
import json, os, signal, sys
import asyncloader as al

folder, audit, state, workers, die_at = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
loader = al.DataLoader(
    al.from_urls(folder + "/*.jsonl").shuffle(6, seed=1), 2, num_workers=workers, lanes=4, audit=audit,
    collate_fn=len,
)
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
for step, batch in enumerate(loader, 1):
    if step % 2 == 0:
        with open(state + ".new", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(state + ".new", state)
    if step == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(250)
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_again_and_again_an_epoch_is_proved(
    workers: int, corpus: Path, tmp_path: Path, programs: Programs
) -> None:
    audit, state, script = tmp_path / "audit", tmp_path / "state.json", tmp_path / "train.py"
    script.write_text(_KILLED)
    for die_at in (3, 5, 0):
        run = programs.run(script, corpus, audit, state, workers, die_at, timeout=60)
        assert run.returncode == (-signal.SIGKILL if die_at else 0)
    verdict = judged(audit)
    assert (verdict.verdict, verdict.samples) == ("exact", SAMPLES), str(verdict)


def test_counts_come_from_an_index_beside_the_shards_or_named(corpus: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for path in corpus.glob("*.jsonl"):
        (shards / path.name).write_bytes(path.read_bytes())
    _read([_loader(_lines(shards), tmp_path / "before")])
    assert judged(tmp_path / "before").expected is None
    al.build_index(str(shards / "*.jsonl"))
    assert judged(tmp_path / "before", index=shards / "asyncloader-index.json").expected == SAMPLES
    _read([_loader(_lines(shards), tmp_path / "after")])
    assert judged(tmp_path / "after").expected == SAMPLES


def test_an_index_of_other_shards_is_refused(corpus: Path, tmp_path: Path) -> None:
    shards, audit = tmp_path / "shards", tmp_path / "audit"
    shards.mkdir()
    for path in corpus.glob("*.jsonl"):
        (shards / path.name).write_bytes(path.read_bytes())
    _read([_loader(_lines(shards), audit)])
    (tmp_path / "others").mkdir()
    for shard in range(len(COUNTS)):
        (tmp_path / "others" / f"{shard}.jsonl").write_text('{"n": 1}\n')
    others = al.build_index(str(tmp_path / "others" / "*.jsonl"))
    with pytest.raises(
        ValueError, match=r"others/asyncloader-index.json lists none of the shards in the audit"
    ):
        al.tools.verify_audit(audit, index=others)
    part = al.build_index([str(shards / "0.jsonl"), str(shards / "1.jsonl")], output=tmp_path / "part.json")
    with pytest.raises(
        ValueError, match=r"part.json has no number of samples for 4 of the 6 shards .*2.jsonl"
    ):
        al.tools.verify_audit(audit, index=part)
    with pytest.raises(ValueError, match=r"there is no index .*none.json"):
        al.tools.verify_audit(audit, index=tmp_path / "none.json")
    assert main(["audit", str(audit), "--index", others]) == 2
    al.build_index(str(shards / "*.jsonl"))
    known = tmp_path / "known"
    _read([_loader(_lines(shards), known)])
    with (shards / "3.jsonl").open("a") as file:
        file.write('{"n": 1}\n')
    changed = al.build_index(str(shards / "*.jsonl"))
    with pytest.raises(ValueError, match=r"has 6 samples in .*3.jsonl, but the loader knew 5"):
        al.tools.verify_audit(known, index=changed)


def test_an_index_for_one_source_of_a_mixture_counts_that_one(corpus: Path, tmp_path: Path) -> None:
    recipe = al.mix({"lines": _lines(corpus), "rows": _rows(corpus)}, stop="all")
    _read([_loader(recipe, tmp_path / "audit")])
    lines = al.build_index(str(corpus / "*.jsonl"), output=corpus / "lines.json")
    try:
        verdict = judged(tmp_path / "audit", index=lines)
    finally:
        os.unlink(lines)
    assert verdict.verdict == "exact" and verdict.expected is None


def test_an_index_may_be_behind_a_url(corpus: Path, tmp_path: Path) -> None:
    with testing.serve(tmp_path, [testing.Status(401, key="secret.json", query="")]) as server:
        shards, audit = tmp_path / "shards", tmp_path / "audit"
        shards.mkdir()
        for path in corpus.glob("*.jsonl"):
            (shards / path.name).write_bytes(path.read_bytes())
        recipe = al.from_urls(f"{server.url}/shards/{{0..5}}.jsonl", index=None)
        _read([_loader(recipe, audit)])
        al.build_index(str(shards / "*.jsonl"))
        assert judged(audit, index=f"{server.url}/shards/asyncloader-index.json").expected == SAMPLES
        assert main(["audit", str(audit), "--index", f"{server.url}/shards/asyncloader-index.json"]) == 0
        with pytest.raises(ValueError, match=r"there is no index http://.*none.json"):
            al.tools.verify_audit(audit, index=f"{server.url}/none.json")
        with pytest.raises(al.StoreError, match="401"):
            al.tools.verify_audit(audit, index=f"{server.url}/secret.json")


def test_a_sample_that_two_ranks_deliver_is_named(corpus: Path, tmp_path: Path) -> None:
    # Two ranks that were told of no other: what a wrong environment does.
    _read(
        [_loader(_lines(corpus), tmp_path / "0", lanes=1), _loader(_lines(corpus), tmp_path / "1", lanes=1)]
    )
    rows = (tmp_path / "1").glob("*.jsonl")
    for path in rows:
        lines = path.read_text().replace('"rank":0', '"rank":1').replace('{"0":0}', '{"1":0}')
        lines = lines.replace('"lane":0', '"lane":1').replace('"all_lanes":[0]', '"all_lanes":[1]')
        (tmp_path / "0" / path.name.replace("00000", "00001")).write_text(lines)
    verdict = judged(tmp_path / "0")
    assert verdict.verdict == "wrong"
    twice = [finding for finding in verdict.findings if finding.what == "twice"]
    assert sum(finding.stop - finding.first for finding in twice) == SAMPLES
    assert {finding.ranks for finding in twice} == {(0, 1)}
    assert f"twice: samples 0 to 6 of {corpus / '0.jsonl'} (ranks 0, 1, lanes 0, 1)" in str(verdict)


def test_samples_that_were_not_recorded_are_named(corpus: Path, tmp_path: Path) -> None:
    _read([_loader(_lines(corpus), tmp_path)])
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text().replace("[[[],2,0],[0,12]]", "[[[],2,0],[0,4,5,12]]"))
    verdict = judged(tmp_path)
    assert [str(finding) for finding in verdict.findings if finding.stop] == [
        f"never: sample 4 of {corpus / '2.jsonl'}"
    ]
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if '"lane":0' not in line)
    )  # the largest's
    verdict = judged(tmp_path)
    assert verdict.verdict == "wrong"
    assert any(finding.shard.endswith("2.jsonl") and finding.stop is None for finding in verdict.findings)


def test_a_line_that_a_killed_process_cut_is_passed_over(corpus: Path, tmp_path: Path) -> None:
    first = _loader(_lines(corpus), tmp_path)
    _read([first], most=3)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("a") as file:
        file.write('{"row":"lane","id":"ab","lane"')
    again = _loader(_lines(corpus), tmp_path)
    again.set_epoch(0)
    _read([again])
    assert judged(tmp_path).verdict == "exact"


def test_an_epoch_left_half_way_is_unfinished_and_the_next_is_judged_by_itself(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = _loader(_lines(corpus), tmp_path)
    _read([loader], most=3)
    _read([loader])
    assert [verdict.verdict for verdict in al.tools.verify_audit(tmp_path)] == ["unfinished", "exact"]
    assert main(["audit", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "epoch 0: unfinished: 12 samples in 3 batches by rank 0, none twice; lanes" in told
    assert "the total is not known" in told
    assert main(["audit", str(tmp_path), "--epoch", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["samples"] == SAMPLES
    assert main(["audit", str(tmp_path), "--epoch", "7"]) == 2
    assert main(["audit", str(tmp_path / "none")]) == 2


def test_an_epoch_that_was_stopped_with_samples_left_is_not_proved(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _read([_loader(_lines(corpus), tmp_path)], most=3)
    (path,) = tmp_path.glob("*.jsonl")  # as ranks that end with others write it
    ended = {"row": "end", "id": json.loads(path.read_text().splitlines()[0])["id"], "stopped": True}
    path.write_text(path.read_text() + json.dumps(ended) + "\n")
    assert main(["audit", str(tmp_path)]) == 1
    assert "epoch 0: INCOMPLETE: 12 samples in 3 batches" in capsys.readouterr().out


def test_two_loaders_in_one_folder_are_told_apart(corpus: Path, tmp_path: Path) -> None:
    _read([_loader(_lines(corpus), tmp_path), _loader(_rows(corpus), tmp_path)])
    assert [verdict.verdict for verdict in al.tools.verify_audit(tmp_path)] == ["exact", "exact"]


def test_a_forked_child_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    loader = _loader(_lines(corpus), tmp_path)
    batches = iter(loader)
    next(batches)
    (path,) = tmp_path.glob("*.jsonl")
    before = path.read_text()
    if (child := os.fork()) == 0:
        loader.state_dict()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_text() == before
    loader.state_dict()
    assert path.read_text() != before
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_say_what_came_and_what_was_to(workers: int, corpus: Path, tmp_path: Path) -> None:
    mixture = al.mix({"a": _lines(corpus), "b": _rows(corpus)}, stop="all")
    loader = al.DataLoader(mixture, 4, num_workers=workers, lanes=2, collate_fn=len)
    for number, _ in enumerate(loader, 1):
        if number == 2:
            state = loader.state_dict()
            assert (loader.statistics.epoch_batches, loader.statistics.is_over) == (2, False)
    whole = loader.statistics
    assert (whole.epoch, whole.samples, whole.is_over, whole.stopped) == (0, 2 * SAMPLES, True, False)
    assert dict(whole.components) == {"a": SAMPLES, "b": SAMPLES}
    assert whole.expected_samples is None
    loader.load_state_dict(state)
    assert sum(1 for _ in loader) == whole.batches - 2
    rest = loader.statistics
    assert (rest.batches_before, rest.batches, rest.samples) == (2, whole.batches - 2, 2 * SAMPLES - 8)
    assert rest.epoch_batches == whole.epoch_batches == whole.batches


def test_statistics_know_the_epoch_by_an_index(corpus: Path, tmp_path: Path) -> None:
    with al.ShardWriter(tmp_path / "{:02d}.jsonl", samples_per_shard=5) as writer:
        for number in range(23):
            writer.write({"number": number})
    loader = al.DataLoader(al.from_urls(str(tmp_path / "*.jsonl")), 4, rank=1, world_size=2)
    next(iter(loader))
    told = loader.statistics
    assert (told.expected_samples, told.expected_batches, told.batches) == (11, 3, 1)
    loader.close()


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("file", "file cannot be written: File exists"),
        ("file/below", "file/below cannot be written: Not a directory"),
        ("taken", "jsonl cannot be written: Is a directory"),
        ("/proc/audit", "/proc/audit cannot be written: No such file or directory"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_that_cannot_be_written_is_an_error_before_any_shard_is_asked_for(
    place: str, found: str, workers: int, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with testing.serve(corpus) as server:

        def make(audit: str | Path) -> al.DataLoader[Any]:
            urls = [server.url_of(f"{shard}.jsonl") for shard in range(6)]
            recipe = al.from_urls(urls, index=None)
            return al.DataLoader(recipe, 4, num_workers=workers, collate_fn=len, audit=audit)

        if place == "taken":
            with make(tmp_path / place) as loader:
                next(iter(loader))
            (written,) = (tmp_path / place).glob("*-rank00000.jsonl")
            written.unlink()
            written.mkdir()
            until(lambda: not server.counters.open_connections)  # what it had asked for is counted late
        asked = len(server.requests)
        with testing.check_leaks():
            loader = make(tmp_path / place)
            with pytest.raises(ValueError) as caught:
                iter(loader)
            assert len(server.requests) == asked
            del loader
    assert f"but got audit={str(tmp_path / place)!r}, and" in str(caught.value)
    assert found in str(caught.value) and "name another folder" in str(caught.value)


def test_other_datasets_and_places_are_refused(corpus: Path) -> None:
    with pytest.raises(TypeError, match=r"audit can be given for streams only"):
        al.DataLoader([1, 2], audit="x")
    with pytest.raises(ValueError, match=r"a folder on disk, not a URL, but got audit='s3://b/x'"):
        al.DataLoader(_lines(corpus), audit="s3://b/x")
    with pytest.raises(TypeError, match=r"the path of a folder, but got bool"):
        al.DataLoader(_lines(corpus), audit=True)  # type: ignore[arg-type]


def test_what_was_left_out_is_not_counted_where_nobody_knows_how_much_there_is(
    corpus: Path, tmp_path: Path
) -> None:
    _read([_loader(_lines(corpus).take(8), tmp_path)])
    verdict = judged(tmp_path)
    assert verdict.verdict == "exact" and verdict.left_out is None
    assert "none twice; without an index it is not known how many take(8) left out" in str(verdict)
