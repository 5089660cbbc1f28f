"""An example that trains runs to its end, and once more with a kill in between: the losses are the same."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from programs import Programs

__all__ = ["EXAMPLES", "assert_goes_on_alike", "losses_of"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# One thread each: more wait for each other, spinning, where cores are few.
_OPTIONS = {"strict": False, "more": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}}


def losses_of(printed: str) -> dict[int, str]:
    """The loss of each step that a program has printed."""
    return {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\S+)$", printed, re.MULTILINE)}


def _run(programs: Programs, example: str, ranks: int, *arguments: object, killed: bool = False) -> str:
    """What rank 0 printed."""
    if ranks == 1:
        runs = [programs.run(EXAMPLES / example, *arguments, **_OPTIONS)]
    else:
        runs = programs.run_ranks(ranks, EXAMPLES / example, *arguments, **_OPTIONS)
    ends, printed = {run.returncode for run in runs}, "".join(run.stdout + run.stderr for run in runs)
    if killed:  # another rank may be told of it in a collective, before it comes to its own
        assert -signal.SIGKILL in ends and 0 not in ends, printed
    else:
        assert ends == {0}, printed
    return runs[0].stdout


def assert_goes_on_alike(
    programs: Programs,
    example: str,
    folder: Path,
    *arguments: object,
    die_at: int,
    goes_on_behind: int,
    ranks: int = 1,
) -> None:
    """A run that is killed in step ``die_at`` goes on behind a checkpoint with the losses of a whole one.

    Args:
        programs: Start it.
        example: Its name. It prints each step's loss, and takes ``--folder`` and ``--die-at``.
        folder: An empty one.
        arguments: More of them.
        die_at: The step in which all ranks are killed.
        goes_on_behind: The step of the last checkpoint before.
        ranks: How many.
    """
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    whole = losses_of(_run(programs, example, ranks, "--folder", folder / "whole", *arguments))
    told = ("--folder", folder / "killed", *arguments)
    before = losses_of(_run(programs, example, ranks, *told, "--die-at", die_at, killed=True))
    after = losses_of(_run(programs, example, ranks, *told))
    assert [*before] == [*range(1, die_at)]
    assert [*after] == [*range(goes_on_behind + 1, len(whole) + 1)]
    assert {**before, **after} == whole
    assert len(set(whole.values())) > len(whole) / 2, "the losses tell batches apart"
