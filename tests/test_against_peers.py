"""The benchmark against peers: what it writes, and that it sees a loader which loses or repeats samples."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"

CONDITIONS = {"command": "a command", "machine": "a machine", "commit": "abc", "scale": 1.0}


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def bodies(numbers: Iterator[int] | list[int]) -> list[bytes]:
    from peers.corpora import BODY_BYTES

    ends = [number.to_bytes(8, "big") for number in numbers]
    return [end + bytes(BODY_BYTES - 16) + end for end in ends]


def test_page_has_what_the_command_writes() -> None:
    from peers.report import render, replace_section

    docs = Path(__file__).parents[1] / "docs"
    page = (docs / "benchmarks.md").read_text()
    assert page == replace_section(page, render(json.loads((docs / "benchmarks.json").read_text())))


def row(label: str, module: str, *runs: dict[str, Any]) -> dict[str, Any]:
    name, _, setting = label.rpartition(", ")
    usual = {"samples_s": 1.0, "steady_samples_s": 1.0, "first_s": 1.0, "cpu_s": 1.0, "peak_mb": 1.0}
    whole = [{**usual, "wrong": "", **run} for run in runs]
    return {"label": label, "name": name, "setting": setting, "module": module, "runs": whole}


def results(*rows: dict[str, Any], workload: str = "tiny-lines") -> dict[str, Any]:
    return {workload: {**CONDITIONS, "rows": list(rows)}}


def test_command_writes_tables_figures_and_plot_and_keeps_other_workloads(tmp_path: Path) -> None:
    from peers.report import BEGIN, END

    page, figures = tmp_path / "benchmarks.md", tmp_path / "benchmarks.json"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\n# After\n")
    kept = results(
        row("asyncloader, 0 workers", "over_asyncloader", {"samples_s": 54321.0}), workload="tiny-tar"
    )
    figures.write_text(json.dumps(kept))
    command = [sys.executable, BENCHMARKS / "against_peers.py", "tiny-lines", "--without-peers"]
    command += ["--rounds", "1", "--scale", "0.001", "--write", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# Before\n") and text.endswith("# After\n") and "old" not in text
    assert "### Tiny samples in JSON Lines" in text and "54,321" in text
    # All targets are printed; the page has the missed ones.
    assert "|missed|" in done.stdout and "### Missed targets" in text
    found = json.loads(figures.read_text())
    assert found["tiny-tar"] == kept["tiny-tar"]
    assert [each["label"] for each in found["tiny-lines"]["rows"]] == [
        "asyncloader, 0 workers",
        "`DataLoader`, json, 0 workers",
    ]
    for each in found["tiny-lines"]["rows"]:
        (run,) = each["runs"]
        assert run["wrong"] == "" and run["samples_s"] > 0 and run["first_s"] > 0 and run["peak_mb"] > 10
    drawn = ElementTree.parse(tmp_path / "benchmarks.svg").getroot()
    assert sum("rect" in part.tag for part in drawn) == 3


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([[0, 1], [2, 3]], ""),
        ([[3, 2], [0], [1]], ""),
        ([[0, 1], [3]], "1 lost"),
        ([[0, 1], [1, 2, 3]], "1 repeated"),
        ([[0, 1, 2], [2, 2]], "1 lost, 2 repeated"),
        ([[0, 1, 2, 3, 4]], "1 damaged"),
        ([], "4 lost"),
    ],
)
def test_pass_tells_what_was_lost_repeated_or_damaged(batches: list[list[int]], wrong: str) -> None:
    from peers.given import Source
    from peers.one_pass import Clock, run_loader

    source = Source("", "", (), samples=4, workers=0, threads=0, scratch="")
    options = argparse.Namespace(first=False, half_to=None, rest_from=None, times=1)
    found = run_loader(map(bodies, batches), "bodies", source, Clock(), options)
    assert found["wrong"] == wrong


def test_body_that_was_cut_is_damaged() -> None:
    from peers.one_pass import COUNTED

    (whole,) = bodies([7])
    assert COUNTED["bodies"]([whole, whole[:-1], whole[:-8] + bytes(8)]) == [7, -1, -1]


def test_loader_that_reads_a_shard_twice_is_reported_as_wrong_without_its_speed(tmp_path: Path) -> None:
    from peers.corpora import write_corpus
    from peers.report import render
    from peers.rounds import Runner
    from peers.rows import Row
    from peers.workloads import WORKLOADS

    corpus = write_corpus("tiny lines", tmp_path, scale=0)
    first, second, *others = corpus.names()
    (tmp_path / second).unlink()
    (tmp_path / second).hardlink_to(tmp_path / first)
    assert len(others) == 6
    plain = Row("over_torch", "tiny_lines", "plain")
    runner = Runner(None, rounds=1, scale=0)
    figures = runner.measure(WORKLOADS["tiny-lines"], plain, corpus, tmp_path, str(tmp_path))
    assert figures["wrong"] == "8 lost, 8 repeated"
    shown = render(results(row(plain.label, plain.module, figures)))
    assert "|**wrong: 8 lost, 8 repeated**|" in shown
    assert f"{figures['samples_s']:,.0f}" not in shown


def test_ratio_is_of_the_same_round_to_the_best_that_did_all_the_work() -> None:
    from peers.rounds import is_reached, ratio_to
    from peers.rows import Goal

    ours = row("ours, 0 workers", "over_asyncloader", *({"samples_s": rate} for rate in (30, 20, 100)))
    slow = row("slow, 0 workers", "over_torch", *({"samples_s": rate} for rate in (10, 10, 10)))
    fast = row("fast, 0 workers", "over_nodes", *({"samples_s": rate} for rate in (15, 5, 25)))
    cheat = row(
        "cheat, 0 workers", "over_litdata", *({"samples_s": 1e9, "wrong": "1 lost"} for _ in range(3))
    )
    assert ratio_to(ours, [slow, fast, cheat], "samples_s") == 2.0
    goal = Goal(
        "ours, 0 workers", "samples_s", 2.0, ("slow, 0 workers", "fast, 0 workers", "cheat, 0 workers")
    )
    assert is_reached(goal, [ours, slow, fast, cheat]) == (2.0, True)
    lossy = row("ours, 0 workers", "over_asyncloader", {"wrong": "1 lost"})
    assert is_reached(goal, [lossy, slow, fast, cheat]) == (None, False)


def test_less_memory_and_less_time_are_better() -> None:
    from peers.rounds import is_reached
    from peers.rows import Goal

    ours = row("ours, 0 workers", "over_asyncloader", {"peak_mb": 300.0, "first_s": 0.3})
    plain = row("plain, 0 workers", "over_torch", {"peak_mb": 200.0, "first_s": 0.1})
    near = Goal("ours, 0 workers", "peak_mb", 1.0, ("plain, 0 workers",), extra=150.0)
    assert is_reached(near, [ours, plain]) == (pytest.approx(300 / 350), True)
    assert (
        is_reached(Goal("ours, 0 workers", "first_s", 2.0, ("plain, 0 workers",)), [ours, plain])[1] is False
    )
    assert is_reached(Goal("ours, 0 workers", "first_s", 0.31), [ours, plain]) == (0.3, True)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_peers_leaves_an_older_environment_to_those_who_use_it(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)

    def steps() -> str:
        run = ["make", "--dry-run", "--no-print-directory", "peers"]
        return subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert "-m venv" in steps()
    made = tmp_path / ".venv" / ".made"
    made.parent.mkdir()
    made.touch()
    os.utime(made, (0, 0))
    assert steps().splitlines() == [".venv/bin/python tests/benchmarks/peers/environment.py"]
