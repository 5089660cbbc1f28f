"""Run the rows of a workload in turn, each pass in a fresh process, round by round."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _measure import PeakMemory

from .corpora import Corpus, link_again, write_corpus
from .given import Source
from .places import open_place
from .rows import Goal, Row, Workload

__all__ = ["FIGURES", "Figures", "Runner", "is_reached", "median_of", "ratio_to", "reference_of"]

#: What a pass is measured by, and whether more of it is better.
FIGURES = {"samples_s": True, "steady_samples_s": True, "first_s": False, "cpu_s": False, "peak_mb": False}

_HERE = Path(__file__).parents[1]
#: A side that takes longer hangs.
_LONGEST_S = 600.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """What all passes of a run have in common.

    Attributes:
        peers_python: The interpreter that has the peers; None to leave them out.
        rounds: How often each row is run.
        scale: Of the corpora.
    """

    peers_python: str | None
    rounds: int
    scale: float

    def run(self, workload: Workload, said: Callable[[str], None]) -> list[Figures]:
        """All rounds of a workload.

        Args:
            said: Is told each pass.

        Returns:
            For each row what it is, and ``runs``, a round each: the figures, or ``wrong`` with what was.
        """
        rows = [row for row in workload.rows if row.is_installed or self.peers_python]
        found: list[Figures] = [
            {"label": row.label, "name": row.name, "setting": row.setting, "module": row.module, "runs": []}
            for row in rows
        ]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="peers-")))
            corpus = self.write(workload, folder, rows)
            bases = {
                place: stack.enter_context(open_place(place, folder))
                for place in sorted({row.place for row in rows})
            }
            for number in range(self.rounds):
                # Another one first in each round: the machine's other work comes and goes.
                for nth in (*range(number, len(rows)), *range(min(number, len(rows)))):
                    row = rows[nth]
                    figures = self.measure(workload, row, corpus, folder, bases[row.place])
                    found[nth]["runs"].append(figures)
                    said(f"{row.label}: {figures['wrong'] or _line(figures)}")
        return found

    def write(self, workload: Workload, folder: Path, rows: list[Row]) -> Corpus:
        """What the rows read, in an empty folder."""
        if isinstance(workload.corpus, int):
            return Corpus("", "", 0, round(workload.corpus * self.scale))
        corpus = write_corpus(workload.corpus, folder, self.scale)
        link_again(corpus, folder, max(row.times for row in rows))
        if any(row.module == "over_litdata" for row in rows):
            command = [str(self.peers_python), "-m", "peers.over_litdata", str(folder)]
            subprocess.run(command, cwd=_HERE, check=True, stdout=subprocess.DEVNULL, timeout=_LONGEST_S)
        return corpus

    def measure(
        self,
        workload: Workload,
        row: Row,
        corpus: Corpus,
        folder: Path,
        base: str,
        library: Path | None = None,
    ) -> Figures:
        """One pass of a row, or two where it is resumed.

        Args:
            corpus: What is read, in ``folder``.
            base: The same place as the loader is told it.
            library: The folder that asyncloader is imported from; None is the one that is installed.

        Returns:
            ``FIGURES``, and ``wrong``: what was, or empty. A pass that failed has that alone.
        """
        python = sys.executable if row.is_installed else str(self.peers_python)
        counted = "bytes" if row.module == "limits" else workload.counted
        with TemporaryDirectory(prefix="pass-") as scratch:
            source = Source(
                base, str(folder), corpus.names(row.times), corpus.samples, row.workers, row.threads, scratch
            )
            command = [
                *(python, "-m", "peers.one_pass", f"peers.{row.module}", row.function, counted),
                *(json.dumps(asdict(source)), "--times", str(row.times), *["--first"] * workload.first),
            ]
            environment = {**os.environ, **({} if library is None else {"PYTHONPATH": str(library)})}
            try:
                if not workload.resumes:
                    return _rounded(_run(command, environment))
                state = f"{scratch}/state.pickle"
                before = _run([*command, "--half", state], environment)
                rest = _run([*command, "--from", state], environment)
                return _rounded({**rest, "fresh_first_s": before["first_s"]})
            except (subprocess.SubprocessError, ValueError) as error:
                said = (getattr(error, "stderr", None) or "").strip() or str(error)
                return {"wrong": f"failed: {said.splitlines()[-1]}"}


def _run(command: list[str], environment: Mapping[str, str]) -> Figures:
    """Run a pass and measure the memory of all its processes from outside.

    Raises:
        subprocess.SubprocessError: It failed, with what it said, or took too long.
        ValueError: It printed no figures.
    """
    with subprocess.Popen(
        command,
        cwd=_HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        peak = PeakMemory(0.1, process.pid)
        try:
            out, err = process.communicate(timeout=_LONGEST_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
            raise
        finally:
            peak_bytes = peak.stop()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    printed = out.splitlines()
    if not printed:
        raise ValueError("it printed no figures")
    return {**json.loads(printed[-1]), "peak_mb": peak_bytes / 1e6}


def _rounded(figures: Figures) -> Figures:
    """To four digits: more would be noise."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, int | float) else value
        for key, value in figures.items()
    }


def _line(figures: Figures) -> str:
    return f"{figures['samples_s']:,.0f} samples/s, first batch after {figures['first_s']:.2f} s"


def median_of(row: Figures, figure: str) -> float | None:
    """Over the rounds; None where one of them was wrong."""
    if any(run["wrong"] for run in row["runs"]):
        return None
    return statistics.median(run[figure] for run in row["runs"])


def ratio_to(ours: Figures, others: list[Figures], figure: str, extra: float = 0.0) -> float | None:
    """The median, round by round, of our figure divided by the best of theirs in that round.

    Args:
        others: Those that were wrong in any round are left out: they did other work.
        extra: Added to theirs.
    """
    others = [row for row in others if median_of(row, figure) is not None]
    if median_of(ours, figure) is None or not others:
        return None
    best = max if FIGURES[figure] else min
    return statistics.median(
        run[figure] / (best(row["runs"][number][figure] for row in others) + extra)
        for number, run in enumerate(ours["runs"])
    )


def is_reached(goal: Goal, rows: list[Figures]) -> tuple[float | None, bool]:
    """What was found of a goal, and whether that is enough."""
    by_label = {row["label"]: row for row in rows}
    ours = by_label[goal.row]
    if goal.others:
        others = [by_label[label] for label in goal.others]
        found = ratio_to(ours, others, goal.figure, goal.extra)
    else:
        found = median_of(ours, goal.figure)
    if found is None:
        return None, False
    return found, found >= goal.bound if FIGURES[goal.figure] else found <= goal.bound


def reference_of(row: Figures, rows: list[Figures]) -> Figures | None:
    """asyncloader's row to hold another one against: with as many workers, or its first."""
    ours = [each for each in rows if each["module"] == "over_asyncloader"]
    alike = [each for each in ours if each["setting"].split()[0] == row["setting"].split()[0]]
    return next(iter(alike or ours), None)
