"""Training processes that are killed while their workers load: nothing stays behind."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from programs import Programs
from workers.processes import Watch

pytestmark = pytest.mark.usefixtures("platform")

# Each round several at once: most of the time goes into importing torch, in each one's fork server.
_AT_ONCE = 3

_SCRIPT = f"""
import os, signal, sys, time
import asyncloader as al
import torch

def told(samples):
    return samples, os.getpid()

numbers = al.from_iterable(lambda topology: topology.split(range(10_000_000)))
recipe = numbers.map(lambda number: torch.full((2_000,), number))
loader = al.DataLoader(recipe, 4, num_workers=2, collate_fn=told)
for _ in range({_AT_ONCE - 1}):
    if os.fork() == 0:
        break
batches = iter(loader)
workers = {{pid for _, (_, pid) in zip(range(8), batches)}}
lines = [open(f"/proc/{{pid}}/status").read().splitlines() for pid in workers]
servers = {{line.split()[1] for told in lines for line in told if line.startswith("PPid:")}}
os.write(1, (" ".join(map(str, [os.getpid(), *servers, *workers])) + "\\n").encode())
for _ in batches:
    pass
"""


def _kill_some(programs: Programs, folder: Path, rounds: int, draw: random.Random) -> None:
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    for _ in range(rounds):
        with programs.started(script, strict=False) as program:
            groups = [[int(pid) for pid in program.read_line().split()] for _ in range(_AT_ONCE)]
            time.sleep(draw.uniform(0, 0.1))
            others = [pid for _, *children in groups for pid in children]
            assert len(others) == 3 * _AT_ONCE
            # What they share has no name, and so ends with them.
            assert set().union(*map(_named_memory, (pid for group in groups for pid in group))) == set()
            with Watch(others) as watch:
                for parent, *_ in sorted(groups, key=lambda group: group[0] == program.pid):
                    os.kill(parent, 9)
                left = watch.left_after(_AT_ONCE)  # a second each: they end at once, on few cores
            program.communicate()
        assert left == set()


def _named_memory(pid: int) -> set[str]:
    """What a process has mapped or open in /dev/shm under a name that is still there."""
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[-1] for line in mapped}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(descriptor))
    return {path for path in found if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")}


@pytest.mark.timeout(180)
def test_killed_parents_leave_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    _kill_some(programs, tmp_path, 1, random.Random(0))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_killed_parents_leave_nothing_behind(part: int, programs: Programs, tmp_path: Path) -> None:
    _kill_some(programs, tmp_path, -(-25 // _AT_ONCE), random.Random(part))
