"""Four ranks over shards of 1 to 50 samples: a collective at each step, and nobody hangs."""

from __future__ import annotations

import json
import random
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main

RANKS = 4

_PROGRAM = """
import json, random, sys, warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import asyncloader as al

folder, first, last, workers = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank = dist.get_rank()
warnings.simplefilter("always")


def recipe_of(sizes):
    def make(topology):
        for shard in topology.split(range(len(sizes))):
            for sample in range(sizes[shard]):
                yield {"number": shard * 100 + sample, "tokens": list(range(sample % 5 + 1))}

    return al.from_iterable(make)


def run(seed, policy):
    drawn = random.Random(seed)
    sizes = [drawn.randint(1, 50) for _ in range(drawn.choice([2, 4, 9]))]
    loader = al.DataLoader(
        recipe_of(sizes),
        drawn.choice([1, 4, 7]),
        num_workers=workers,
        uneven=policy,
        collate_fn=al.Pad({"tokens": 0}),
        audit=f"{folder}/{seed}-{policy}",
    )
    steps, numbers, empty, raised = 0, [], 0, ""
    with warnings.catch_warnings(record=True) as told:
        try:
            for batch in loader:
                there = torch.ones(1)
                dist.all_reduce(there)
                assert there.item() == dist.get_world_size(), "all are at the same step"
                steps += 1
                numbers += batch["number"].tolist()
                assert al.is_empty(batch) == (len(batch["tokens"]) == 0)
                empty += al.is_empty(batch)
                batch.clear()  # it is the consumer's, empty ones too
        except al.errors.RanksError as error:
            raised = str(error)
    warned = [str(warning.message) for warning in told if "left out" in str(warning.message)]
    came = loader.statistics
    assert came.stopped == (came.undelivered_batches > 0)
    ready, stopped, is_over = came.undelivered_samples, came.stopped, came.is_over
    return dict(
        sizes=sizes, steps=steps, numbers=numbers, empty=empty, raised=raised, told=stopped, ready=ready,
        warned=warned, is_over=is_over,
    )


policies = (None, "pad", "raise")
found = {f"{seed} {policy}": run(seed, policy) for seed in range(first, last) for policy in policies}
(Path(folder) / f"{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def check(policy: str, ranks: Sequence[Any]) -> None:
    """All took as many steps, nothing came twice, and what came is what the policy says."""
    assert len({rank["steps"] for rank in ranks}) == 1
    delivered = [number for rank in ranks for number in rank["numbers"]]
    whole = {shard * 100 + sample for shard, size in enumerate(ranks[0]["sizes"]) for sample in range(size)}
    assert len(set(delivered)) == len(delivered)
    lacking = whole - set(delivered)
    if policy == "pad":
        assert not lacking
    elif policy == "raise":
        assert len({bool(rank["raised"]) for rank in ranks}) == 1
        assert bool(ranks[0]["raised"]) == bool(lacking)
    else:
        assert bool(lacking) == any(rank["told"] for rank in ranks)
        ready = sum(rank["ready"] for rank in ranks)
        assert bool(lacking) <= ready <= len(lacking)
        assert [len(rank["warned"]) for rank in ranks] == [int(bool(lacking)), 0, 0, 0]
        assert all(f"at least {ready} samples were left out" in text for text in ranks[0]["warned"])
        assert [rank["is_over"] for rank in ranks] == [not lacking] * RANKS
    assert policy == "pad" or not any(rank["empty"] for rank in ranks)


def check_runs(programs: Programs, folder: Path, first: int, last: int, workers: int) -> None:
    script = folder / "train.py"
    script.write_text(_PROGRAM)
    for done in programs.run_ranks(RANKS, script, folder, first, last, workers, strict=False, timeout=300):
        assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert len(ranks[0]) == 3 * (last - first)
    for name in ranks[0]:
        seed, policy = name.split()
        of_ranks = [rank[name] for rank in ranks]
        check(policy, of_ranks)
        (verdict,) = al.tools.verify_audit(folder / f"{seed}-{policy}")
        assert verdict.samples == sum(len(rank["numbers"]) for rank in of_ranks)
        assert not verdict.findings and not verdict.faults
        is_raised, is_stopped = (any(rank[how] for rank in of_ranks) for how in ("raised", "told"))
        wanted = "unfinished" if is_raised else "incomplete" if is_stopped else "exact"
        assert verdict.verdict == wanted, str(verdict)
        assert ('uneven="stop"' in verdict.reasons) == is_stopped


_FILTERED = """
import sys, warnings
from pathlib import Path
import torch.distributed as dist
import asyncloader as al

def make(topology):
    yield from range(10 * topology.rank)

dist.init_process_group("gloo")
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as told:
    kept = al.from_iterable(make).filter(lambda number: number >= 0)
    assert [*al.DataLoader(kept, 2)] == []
told = [str(each.message).partition(":")[0] for each in told if "kept no row" in str(each.message)]
Path(sys.argv[1], str(dist.get_rank())).write_text("".join(told))
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_is_stopped_at_once_is_not_told_that_its_filter_kept_nothing(
    tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_FILTERED)
    for done in programs.run_ranks(2, script, tmp_path, strict=False, timeout=120):
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "0").read_text() == "an epoch had no batch"
    assert (tmp_path / "1").read_text() == ""


def test_ranks_stay_in_step_whatever_they_have(tmp_path: Path, programs: Programs) -> None:
    check_runs(programs, tmp_path, 0, 4, 0)


@pytest.mark.slow
def test_ranks_with_workers_stay_in_step(tmp_path: Path, programs: Programs) -> None:
    check_runs(programs, tmp_path, 0, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_ranks_stay_in_step_in_hundreds_of_runs(tmp_path: Path, first: int, programs: Programs) -> None:
    check_runs(programs, tmp_path, first, first + 20, 0)


#: Lines of shards of which whole ones cannot be dealt equally to four ranks.
LINES = (13, 250, 7, 99, 180, 42, 311, 64)

#: And of others that can be, by their sizes; in turn ranks would have from 200 to 650 of them.
EQUAL_BY_SIZE = (350, 300, 250, 200, 200, 150, 100, 50)

_SHARDS = """
import json, sys, time, warnings
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch.distributed as dist
import asyncloader as al

folder, url = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
warnings.simplefilter("always")
lines, even = str(folder / "lines" / "*.jsonl"), str(folder / "even" / "*.jsonl")
web = url + "/lines/part-{0..7}.jsonl"
shuffled = al.from_urls(lines).shuffle(100)

#: Recipes, how many batches are taken of each, and the policy.
CASES = {
    "defaults": (shuffled, None, None),
    "equal by size": (al.from_urls(str(folder / "sized" / "*.jsonl")).shuffle(100), None, None),
    "web": (al.from_urls(web), None, None),
    "filtered": (shuffled.filter(lambda sample: True), None, None),
    "mixed": (al.mix([shuffled, al.from_urls(web)], stop="all"), None, None),
    "side by side": (al.zip_datasets({"a": al.from_urls(web), "b": al.from_urls(web)}), None, None),
    "padded": (shuffled, None, "pad"),
    "stopped": (shuffled, None, "stop"),
    "few": (al.from_urls(str(folder / "few" / "*.jsonl")), None, "stop"),
    "each by itself": (shuffled, None, "ignore"),
    "endless": (al.from_urls(web).repeat(), 3, None),
    "taken": (al.from_urls(web).repeat().take(80), None, None),
    "indexed": (al.from_urls(even).shuffle(100), None, None),
    "indexed and filtered": (al.from_urls(even).filter(lambda sample: True), None, None),
}


def run(name, recipe, most, policy):
    loader = al.DataLoader(recipe, 1 if name == "few" else 4, uneven=policy, audit=folder / "audit" / name)
    numbers, told = [], {}
    with warnings.catch_warnings(record=True) as warned:
        try:
            for batch in islice(loader, most):
                numbers += batch["a"]["n"].tolist() if "a" in batch else batch["n"].tolist()
        except al.errors.RanksError as error:
            told = {"error": str(error)}
        if policy == "stop":
            told["rest"], told["epoch"] = go_on(name, recipe, loader)
    told["warned"] = [str(warning.message) for warning in warned if "left out" in str(warning.message)]
    return {"numbers": numbers, **told}


def go_on(name, recipe, stopped):
    # What a loader that leaves nothing out goes on with, and the epoch that one which stops again is in.
    assert not stopped.statistics.is_over
    merged = al.merge_states(gathered(stopped.state_dict()))
    again = al.DataLoader(recipe, stopped.batch_size, uneven="stop")
    again.load_state_dict(merged)
    next_epoch = again.state_dict()["epoch"]
    padded = al.DataLoader(recipe, stopped.batch_size, uneven="pad", audit=folder / "audit" / name)
    padded.load_state_dict(merged)
    # Saved before it goes on, and after some of it.
    padded.load_state_dict(al.merge_states(gathered(padded.state_dict())))
    batches = iter(padded)
    rest = next(batches)["n"].tolist()
    moved = al.DataLoader(recipe, stopped.batch_size, uneven="pad", audit=folder / "audit" / name)
    moved.load_state_dict(al.merge_states(gathered(padded.state_dict())))
    padded.close()
    for batch in moved:
        rest += batch["n"].tolist()
    return rest, next_epoch


def gathered(state):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


told = {name: run(name, *case) for name, case in CASES.items()}
(folder / f"{rank}.json").write_text(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
"""


def write_lines(folder: Path, lines: Sequence[int], first: int = 0) -> None:
    folder.mkdir(parents=True)
    for number, count in enumerate(lines):
        text = "".join(json.dumps({"n": first + at}) + "\n" for at in range(count))
        (folder / f"part-{number}.jsonl").write_text(text)
        first += count


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> tuple[dict[str, list[Any]], Path]:
    """What four ranks tell of each case of ``_SHARDS``, and their folder."""
    tmp_path = tmp_path_factory.mktemp("shards")
    write_lines(tmp_path / "lines", LINES)
    write_lines(tmp_path / "sized", EQUAL_BY_SIZE, first=10_000)  # lines of one length
    write_lines(tmp_path / "even", LINES)
    write_lines(tmp_path / "few", (7, 3))
    al.build_index(str(tmp_path / "even" / "*.jsonl"))
    al.build_index(str(tmp_path / "few" / "*.jsonl"))
    script = tmp_path / "train.py"
    script.write_text(_SHARDS)
    with testing.serve(tmp_path) as server:
        url = server.url_of("").rstrip("/")
        for done in programs.run_ranks(RANKS, script, tmp_path, url, strict=False, timeout=200):
            assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}, tmp_path


def test_what_the_default_would_leave_out_of_shards_is_an_error_on_every_rank(
    cases: tuple[dict[str, list[Any]], Path],
) -> None:
    told, tmp_path = cases
    command = f"asyncloader index {tmp_path}/lines/part-*.jsonl"
    for name in ("defaults", "web", "filtered", "mixed", "side by side"):
        for rank in told[name]:
            assert not rank["numbers"]
            assert 'pass uneven="pad"' in rank["error"].lower() and 'or uneven="stop"' in rank["error"]
            assert ("asyncloader index" in rank["error"]) == (name != "side by side")
        assert len({rank["error"].partition(" [rank")[0] for rank in told[name]}) == 1
        assert not (tmp_path / "audit" / name).exists()
    assert command in told["defaults"][0]["error"].replace("'", "")
    for name in ("defaults", "filtered"):
        assert "of 8 shards: rank" in told[name][0]["error"] and "by the sizes of" in told[name][0]["error"]
    assert "whose sizes are not known" in told["web"][0]["error"]
    assert (
        "part-{0..7}.jsonl' -o asyncloader-index.json makes it and is given as index="
        in told["web"][0]["error"]
    )
    whole = list(range(sum(LINES)))
    for name in ("padded", "each by itself", "indexed", "indexed and filtered"):
        assert sorted(number for rank in told[name] for number in rank["numbers"]) == whole, name
    assert [len(rank["numbers"]) for rank in told["endless"]] == [12] * RANKS
    assert [len(rank["numbers"]) for rank in told["taken"]] == [20] * RANKS
    (verdict,) = al.tools.verify_audit(tmp_path / "audit" / "indexed")
    assert (verdict.verdict, verdict.samples) == ("exact", sum(LINES))


def test_shards_that_sizes_make_about_equal_ranks_of_are_read_by_default(
    cases: tuple[dict[str, list[Any]], Path],
) -> None:
    told, tmp_path = cases
    numbers = [rank["numbers"] for rank in told["equal by size"]]
    assert [*map(len, numbers)] == [400] * RANKS
    assert sorted(number for mine in numbers for number in mine) == [*range(10_000, 11_600)]
    (verdict,) = al.tools.verify_audit(tmp_path / "audit" / "equal by size")
    assert (verdict.verdict, verdict.samples) == ("exact", 1600)


def test_what_a_stop_leaves_out_is_told_once_and_can_be_gone_on_with(
    cases: tuple[dict[str, list[Any]], Path],
) -> None:
    told, tmp_path = cases
    for name, whole in (("stopped", sum(LINES)), ("few", 10)):
        delivered = [number for rank in told[name] for number in rank["numbers"]]
        rest = [number for rank in told[name] for number in rank["rest"]]
        assert rest and sorted(delivered + rest) == list(range(whole))
        assert [rank["epoch"] for rank in told[name]] == [1] * RANKS
        assert [len(rank["warned"]) for rank in told[name]] == [1, 0, 0, 0]
        (verdict,) = al.tools.verify_audit(tmp_path / "audit" / name)
        assert (verdict.verdict, verdict.samples) == ("exact", whole)
    assert "after 2 steps of this pass" in told["few"][0]["warned"][0]
    assert "2 of 10 samples were left out" in told["few"][0]["warned"][0]
    assert "shards that were not read to their ends, left out" in told["stopped"][0]["warned"][0]


_DEFAULTS = """
import sys, time
from pathlib import Path

import torch.distributed as dist
import asyncloader as al

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
loader = al.DataLoader(al.from_urls(str(folder / "lines" / "*.jsonl")), 8, audit=folder / "audit")
try:
    for batch in loader:
        pass
finally:
    (folder / f"{rank}.end").write_text(str(time.time()))
"""


def test_with_all_defaults_no_rank_ends_well_where_samples_are_missing(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "lines", LINES)
    script = tmp_path / "train.py"
    script.write_text(_DEFAULTS)
    for done in programs.run_ranks(RANKS, script, tmp_path, strict=False):
        assert done.returncode == 1 and "RanksError" in done.stderr
    ended = [float((tmp_path / f"{rank}.end").read_text()) for rank in range(RANKS)]
    assert max(ended) - min(ended) < 10, "nobody has waited for the others"
    assert main(["audit", str(tmp_path / "audit")]) != 0


_COPIES = """
import sys
from datetime import timedelta

import torch.distributed as dist
import asyncloader as al

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
loader = al.DataLoader(al.from_urls(f"{sys.argv[1]}/{dist.get_rank()}/*.jsonl"), 5)
numbers = [number for batch in loader for number in batch["n"].tolist()]
"""


def assert_copies_are_refused(tmp_path: Path, programs: Programs) -> None:
    """Each of two ranks, with the copy of the shards that is named after it."""
    script = tmp_path / "train.py"
    script.write_text(_COPIES)
    ended = programs.run_ranks(2, script, tmp_path, strict=False)
    assert [done.returncode for done in ended] == [1, 1]
    assert all("RanksError" in done.stderr for done in ended)
    assert any("the sizes of their shards differ" in done.stderr for done in ended)


def test_ranks_whose_copies_of_the_shards_differ_are_refused(tmp_path: Path, programs: Programs) -> None:
    for rank, lines in enumerate([(40, 20), (20, 40)]):  # as many shards and samples, dealt otherwise
        write_lines(tmp_path / str(rank), lines)
        al.build_index(str(tmp_path / str(rank) / "*.jsonl"))
    assert_copies_are_refused(tmp_path, programs)


def test_ranks_that_see_other_sizes_of_the_shards_are_refused(tmp_path: Path, programs: Programs) -> None:
    for rank, lines in enumerate([(20, 30, 40, 50), (30, 20, 50, 40)]):  # equal ranks, of other shards
        write_lines(tmp_path / str(rank), lines, first=100)
    assert_copies_are_refused(tmp_path, programs)


_SURVIVE = """
import os, signal, sys
from datetime import timedelta

import torch.distributed as dist
import asyncloader as al

victim, last = map(int, sys.argv[1:])
dist.init_process_group("gloo")
rank = dist.get_rank()
recipe = al.from_iterable(lambda topology: topology.split(range(120)))
list(al.DataLoader(recipe, 2))  # imports
dist.barrier()
# Short only when all are there: on a busy machine it takes a while to start them.
dist.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=10))
try:
    for step, batch in enumerate(al.DataLoader(recipe, 2)):
        if rank == victim and step == last:
            os.kill(os.getpid(), signal.SIGKILL)
except al.errors.RanksError as error:
    print(error)
    sys.stdout.flush()
    os._exit(7)  # the group's own tear-down waits for the rank that is gone
"""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 11))])
def test_the_others_raise_when_a_rank_is_killed(seed: int, tmp_path: Path, programs: Programs) -> None:
    """Not in a collective of the training, but in the loader, and nobody ends them from outside."""
    drawn = random.Random(seed)
    # The store is in rank 0's process. Of the 15 steps the last ones are agreed on before they are taken.
    victim, step = drawn.randrange(RANKS), drawn.randrange(12)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    script = tmp_path / "train.py"
    script.write_text(_SURVIVE)
    with ExitStack() as stack:
        ranks = []
        for rank in range(RANKS):
            more = {**address, "RANK": str(rank)}
            started = programs.started(script, victim, step, more=more, strict=False)
            ranks.append(stack.enter_context(started))
        told = [rank.communicate(timeout=140)[0] for rank in ranks]
    ended = [7 if rank != victim else -signal.SIGKILL for rank in range(RANKS)]
    assert [rank.returncode for rank in ranks] == ended, (victim, step, told)
    assert all("did not answer within 10 s" in told[rank] for rank in range(RANKS) if rank != victim)
