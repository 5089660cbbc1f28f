"""What stands for tensors, and what waits for torch, each in a process that has not imported it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from end_to_end.harness import subprocess_environment


def run(text: str) -> str:
    program = [sys.executable, "-c", text]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=100, env=subprocess_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stand_ins_are_made_only_where_they_are_allowed_and_torch_is_not_there() -> None:
    text = """
import sys, threading
import numpy as np
from asyncloader.blocks.memory import standing_in, tensor_of
with standing_in():
    print(type(tensor_of(np.ones(2))).__name__, "torch" in sys.modules)
    print(tensor_of(np.ones(2)).nbytes)
    other = threading.Thread(target=lambda: print(type(tensor_of(np.ones(2))).__name__))
    other.start()
    other.join()
    print(type(tensor_of(np.ones(2))).__name__)
"""
    assert run(text).split() == ["StandIn", "False", "16", "Tensor", "Tensor"]


# Importing torch takes seconds: by way of a module in it, and in the slow tests straight.
@pytest.mark.parametrize(
    "how",
    [
        "from torch.utils import data",
        pytest.param("import torch", marks=pytest.mark.slow),
        pytest.param("__import__('torch')", marks=pytest.mark.slow),
    ],
)
def test_what_waits_for_torch_is_done_once_right_after_it_was_imported(how: str) -> None:
    text = f"""
import sys
from asyncloader.blocks.memory import when_torch_is_here
def first():
    import torch
    print("first", torch.ones(1).item())
when_torch_is_here(first)
when_torch_is_here(lambda: print("second"))
import numpy
print("numpy")
{how}
import torch
print(sum(type(finder).__name__ == "_AfterTorch" for finder in sys.meta_path))
when_torch_is_here(lambda: print("at once"))
"""
    lines = run(text).splitlines()
    assert lines[0] == "numpy" and sorted(lines[1:3]) == ["first 1.0", "second"]
    assert lines[3:] == ["0", "at once"]
