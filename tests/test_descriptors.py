"""Processes that were started with standard input, output or error closed, as services are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from itertools import permutations
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


# None, each alone, and all of them; a process that imports torch, thrice, takes seconds.
@pytest.mark.parametrize(
    "closed", [*sorted(set(permutations([True, False, False]))), (True,) * 3, (False,) * 3], ids=str
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
        timeout=55,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 3 * 3 * 4 + (4 if closed[1] and closed[2] else 0) + 1
    for standard in found:
        for name, is_closed in zip(standard, closed, strict=True):
            assert name == "/dev/null" if is_closed else name in ("/dev/null", "pipe")


def test_those_that_are_open_are_left_alone_and_nothing_stays_open_beside_them() -> None:
    program = (
        "import os\n"
        "from asyncloader.descriptors import occupy_standard_descriptors\n"
        "os.close(1)\n"
        "def what(): return [os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)]\n"
        "before = what()\n"
        "for _ in range(2):\n"
        "    occupy_standard_descriptors()\n"
        "    assert what() == before\n"
        "    assert os.readlink('/proc/self/fd/1') == os.devnull and os.get_inheritable(1)\n"
        "    assert not os.path.exists('/proc/self/fd/3')\n"
    )
    environ = os.environ | {"PYTHONPATH": str(Path(al.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
