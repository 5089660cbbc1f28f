"""The loop with tensor and data parallelism: killed and resumed, it trains as if nothing had been."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Programs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tensor_parallel.py"
PROCESSES = 4
EXACT = "epoch 0: exact: 96 samples in 24 batches by ranks 0, 1, each of 96 once"
_LIMIT_S = 110

pytestmark = pytest.mark.timeout(300)


def train(programs: Programs, folder: Path, *arguments: str, killed: bool = False) -> dict[int, str]:
    """Each step that was trained, with its loss and samples; the verdicts of the audit as step 0."""
    given = ("--folder", str(folder), *arguments)
    ran = programs.run_ranks(PROCESSES, EXAMPLE, *given, strict=False, timeout=_LIMIT_S)
    codes = {each.returncode for each in ran}
    assert codes == {-signal.SIGKILL if killed else 0}, ran[0].stderr[-3000:]
    steps = {int(step): told for step, told in re.findall(r"^step (\d+): (.*)$", ran[0].stdout, re.M)}
    return {0: "\n".join(re.findall(r"^epoch .*$", ran[0].stdout, re.M)), **steps}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", [(), pytest.param(("--map-style",), marks=SLOW)], ids=["stream", "map style"]
)
def test_a_killed_training_goes_on_with_the_losses_of_one_that_was_not(
    kind: tuple[str, ...], tmp_path: Path, programs: Programs
) -> None:
    whole = train(programs, tmp_path / "whole", *kind)
    before = train(programs, tmp_path / "killed", *kind, "--die-at", "7", killed=True)
    after = train(programs, tmp_path / "killed", *kind)
    assert [*before] == [*range(8)] and [*after] == [0, *range(5, 25)]
    assert {**before, **after} == whole
    assert whole[0] == "" if kind else EXACT in whole[0]


@SLOW
@pytest.mark.parametrize(("tp", "ranks"), [("1", "ranks 0, 1, 2, 3"), ("4", "rank 0")])
def test_a_stream_goes_on_with_another_layout(
    tp: str, ranks: str, tmp_path: Path, programs: Programs
) -> None:
    train(programs, tmp_path, "--tp", "2", "--die-at", "7", killed=True)
    first, second = train(programs, tmp_path, "--tp", tp)[0].splitlines()
    assert first.startswith("epoch 0: exact: 96 samples in 24 batches by ranks 0, 1")
    assert second == f"epoch 1: exact: 96 samples in 24 batches by {ranks}, each of 96 once"


@SLOW
def test_the_program_runs_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += [str(EXAMPLE), "--folder", str(tmp_path)]
    for more, expected in ((["--die-at", "7"], "Signal 9 (SIGKILL)"), ([], EXACT)):
        ran = subprocess.run([*command, *more], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        assert expected in ran.stdout + ran.stderr
