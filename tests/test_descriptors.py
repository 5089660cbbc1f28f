"""Processes that were started with standard input, output or error closed, as services are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import asyncloader as al

# What a descriptor is, told by the process itself: sockets and pipes of ours would be named here.
_SCRIPT = """
    import json, os, sys, time
    import asyncloader as al

    def standard():
        return [os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in range(3)]

    class Looks:
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return standard()

    def look(sample):
        return {"standard": standard()}

    def loaders():
        stream = al.from_iterable(lambda topology: topology.split(range(4))).map(look)
        for workers in (0, 2):
            yield al.DataLoader(stream, num_workers=workers, collate_fn=lambda one: one[0]["standard"])
        yield al.DataLoader(Looks(), None, num_workers=1, collate_fn=lambda looked: looked)

    def main(folder):
        found = []
        for loader in loaders():
            for epoch in range(3):
                found += list(loader)
                if epoch == 1:
                    open_before = len(os.listdir("/proc/self/fd"))
            deadline = time.monotonic() + 10  # threads of torch's queues close theirs a moment later
            while len(os.listdir("/proc/self/fd")) > open_before:
                assert time.monotonic() < deadline, "descriptors leak from epoch to epoch"
                time.sleep(0.02)
        if sys.stderr is None and sys.stdout is None:
            # Once is enough: a spawned worker takes seconds to import torch.
            options = dict(num_workers=1, multiprocessing_context="spawn")
            found += al.DataLoader(Looks(), None, collate_fn=lambda looked: looked, **options)
        with al.ShardWriter(f"{folder}/shard-{{:05d}}.jsonl") as writer:
            writer.write({"text": "a"})
        found += [standard()]
        with open(f"{folder}/found.json", "w") as file:
            json.dump(found, file)

    if __name__ == "__main__":
        main(sys.argv[1])
"""


# All of them, and one alone; the others, and none, in the slow tests. A process that imports torch, thrice,
# takes seconds, and below every choice of them is tried without it.
_OTHERS = [(False,) * 3, (False, True, False), (False, False, True)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "closed",
    [(True,) * 3, (True, False, False), *(pytest.param(one, marks=pytest.mark.slow) for one in _OTHERS)],
    ids=str,
)
def test_no_descriptor_of_ours_is_standard_input_output_or_error(
    tmp_path: Path, closed: tuple[bool, bool, bool]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    redirections = ["<", ">", "2>"]
    closing = " ".join(f"{sign}&-" for sign, is_closed in zip(redirections, closed, strict=True) if is_closed)
    environ = os.environ | {"PYTHONPATH": str(Path(al.__file__).parents[1])}
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closing}', sys.executable, str(script), str(tmp_path)],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 3 * 3 * 4 + (4 if closed[1] and closed[2] else 0) + 1
    for standard in found:
        for name, is_closed in zip(standard, closed, strict=True):
            assert name == "/dev/null" if is_closed else name in ("/dev/null", "pipe")


# Each choice of closed ones in a child; what a child has to say goes to a file, as it may have no output.
_EVERY_CHOICE = """
import itertools, os, sys, traceback
from asyncloader.flow.process import occupy_standard_descriptors

def what(numbers):
    return [os.readlink(f"/proc/self/fd/{number}") for number in numbers]

def check(closed):
    for number in closed:
        os.close(number)
    left = [number for number in range(3) if number not in closed]
    before = what(left)
    for _ in range(2):
        occupy_standard_descriptors()
        assert what(left) == before, (closed, what(left), before)
        assert what(closed) == [os.devnull] * len(closed) and all(map(os.get_inheritable, closed)), closed
        assert not os.path.exists("/proc/self/fd/3"), closed

for count in range(4):
    for closed in itertools.combinations(range(3), count):
        if os.fork() == 0:
            try:
                check(closed)
            except BaseException:
                with open(sys.argv[1], "a") as file:
                    file.write(traceback.format_exc())
            os._exit(0)
        os.wait()
"""


def test_those_that_are_open_are_left_alone_and_nothing_stays_open_beside_them(tmp_path: Path) -> None:
    complaints = tmp_path / "complaints"
    complaints.touch()
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_CHOICE, str(complaints)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(al.__file__).parents[1])},
        timeout=120,
    )
    assert (done.returncode, done.stderr, complaints.read_text()) == (0, "", "")
