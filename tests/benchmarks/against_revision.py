"""asyncloader beside an older revision of itself: rate, first batch and memory, in pairs of passes.

    python tests/benchmarks/against_revision.py REVISION [WORKLOAD ...] [--rounds 15] [--scale 1.0]

Each pass runs in a fresh process. A round of a row is a pass with each of the two, in turn one or the other
first; what is compared are the ratios within rounds. Given are their median and the bounds between which the
true median lies with a probability of 95 % at least: two ratios out of their order, which assumes nothing of
how they are distributed (W. J. Conover, Practical Nonparametric Statistics, 3.2). The command ends with 1
where the upper bound says that a rate may have become lower by more than 5 %, or memory larger by more than
10 %, and where a pass was wrong.
"""

from __future__ import annotations

import argparse
import compileall
import io
import math
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from _measure import machine
from peers.environment import ROOT
from peers.places import open_place
from peers.rounds import FIGURES, Figures, Runner
from peers.rows import Row, Workload, rows_of
from peers.workloads import WORKLOADS

_OURS = "over_asyncloader"
#: How much worse each figure may be; the rate is over a whole pass, and so has the first batch in it.
BOUNDS = {"samples_s": 1.05, "first_s": None, "peak_mb": 1.10}

_COMPARED = (
    "tar-local",
    "tar-http",
    "tar-far",
    "distance",
    "images",
    "tokens",
    "tiny-tar",
    "tiny-lines",
    "map-style",
    "resume",
)
REVISION_WORKLOADS = {
    **{name: WORKLOADS[name] for name in _COMPARED},
    "tar-far-unindexed": Workload(
        "Tar from far away, with no index looked for",
        "",
        "bodies",
        rows_of(_OURS, "unindexed", 0, 2, place="50"),
    ),
    "tar-singly": Workload(
        "Tar on disk, sample by sample", "", "bodies", rows_of(_OURS, "singly", 0), counts="single bodies"
    ),
    "made": Workload(
        "Samples that a program makes", "", 500_000, rows_of(_OURS, "made", 0, 2), counts="made"
    ),
    "many-shards": Workload(
        "A million shards up to the first batch",
        "",
        "many shards",
        rows_of(_OURS, "many_shards", 0),
        first=True,
    ),
}


def main() -> int:
    options = parser().parse_args()
    if unknown := set(options.workloads) - set(REVISION_WORKLOADS):
        parser().error(f"no workload is called {', '.join(sorted(unknown))}")
    print(f"{options.revision}, then {ROOT}: {machine()}; {options.rounds} pairs of passes a row")
    is_worse = False
    with TemporaryDirectory(prefix="revision-") as folder:
        libraries = (export(options.revision, Path(folder)), ROOT)
        for library in libraries:  # as pip does, so that no pass has to compile what it imports
            compileall.compile_dir(library / "asyncloader", quiet=1)
        for name in options.workloads or REVISION_WORKLOADS:
            is_worse |= compare(name, libraries, options.rounds, options.scale)
    return int(is_worse)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("revision", help="a commit, or what names one for git")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(REVISION_WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15, help="pairs of passes; 6 at least to have bounds")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of samples")
    return parser


def export(revision: str, folder: Path) -> Path:
    """The library as it was then, in a folder to import it from."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "asyncloader"]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def compare(name: str, libraries: tuple[Path, Path], rounds: int, scale: float) -> bool:
    """Run the pairs of a workload and print a line for each figure of each row; whether one is worse."""
    workload = REVISION_WORKLOADS[name]
    rows = [row for row in workload.rows if row.module == _OURS]
    runner = Runner(None, rounds, scale)
    runs: dict[Row, list[tuple[Figures, Figures]]] = {row: [] for row in rows}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="peers-")))
        corpus = runner.write(workload, folder, rows)
        bases = {row.place: "" for row in rows}
        for place in bases:
            bases[place] = stack.enter_context(open_place(place, folder))
        for number in range(rounds):
            for row in rows:
                pair: dict[Path, Figures] = {}
                for library in libraries[:: -1 if number % 2 else 1]:
                    pair[library] = runner.measure(workload, row, corpus, folder, bases[row.place], library)
                before, now = (pair[library] for library in libraries)
                runs[row].append((before, now))
    return any([told(f"{name}: {row.label}", pairs) for row, pairs in runs.items()])


def told(what: str, pairs: Sequence[tuple[Figures, Figures]]) -> bool:
    """Print what came of the pairs of a row; whether it is worse, or wrong."""
    wrong = {side["wrong"] for pair in pairs for side in pair if side["wrong"]}
    if wrong:
        print(f"{what}: wrong: {'; '.join(sorted(wrong))}", flush=True)
        return True
    is_worse = False
    for figure, bound in BOUNDS.items():
        ratios = [slowdown(figure, before[figure], now[figure]) for before, now in pairs]
        low, high = bounds_of_median(ratios)
        exceeds = bound is not None and high > bound
        is_worse |= exceeds
        medians = [statistics.median(pair[side][figure] for pair in pairs) for side in (0, 1)]
        print(
            f"{what}: {figure} {medians[0]:,.4g} -> {medians[1]:,.4g}; {statistics.median(ratios):.3f} times "
            f"{'as long' if figure != 'peak_mb' else 'as much'} ({low:.3f} to {high:.3f})"
            f"{f', more than {bound}' if exceeds else ''}",
            flush=True,
        )
    return is_worse


def slowdown(figure: str, before: float, now: float) -> float:
    """How much worse a figure is now: above 1 where it is."""
    return before / now if FIGURES[figure] else now / before


def bounds_of_median(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which the median that these were drawn from lies, with a probability of 95 % at least.

    Of fewer than six values none do; then from 0 to infinity.
    """
    count = len(ratios)
    below = 0.0
    inside = 0
    # As many as may be left out at each end: the chance that the median lies in there is below 2.5 %.
    while (below := below + math.comb(count, inside) / 2**count) <= 0.025:
        inside += 1
    if not inside:
        return 0.0, math.inf
    ordered = sorted(ratios)
    return ordered[inside - 1], ordered[-inside]


if __name__ == "__main__":
    sys.exit(main())
