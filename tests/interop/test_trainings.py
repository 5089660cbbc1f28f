"""Programs that train by Lightning and accelerate are killed, and go on as if they had not been."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

from .trainings import assert_goes_on_alike

#: Each, and what it needs.
EXAMPLES = {
    "lightning_trainer.py": "lightning",
    "lightning_fabric.py": "lightning",
    "accelerate_trainer.py": "accelerate",
}

# An epoch has eight steps on one rank, and four on two.
IN_AN_EPOCH = {"die_at": 13, "goes_on_behind": 10}
IN_AN_EPOCH_OF_TWO = {"die_at": 7, "goes_on_behind": 5, "ranks": 2}
AT_AN_END = {"die_at": 13, "goes_on_behind": 8}

_CASES: list[tuple[list[Any], dict[str, Any]]] = [
    ([], IN_AN_EPOCH),
    (["--map-style"], IN_AN_EPOCH),
    (["--workers", 2], IN_AN_EPOCH),
    (["--map-style", "--workers", 2], IN_AN_EPOCH),
    ([], IN_AN_EPOCH_OF_TWO),
    (["--map-style"], IN_AN_EPOCH_OF_TWO),
    (["--workers", 2], IN_AN_EPOCH_OF_TWO),
    (["--save-steps", 8], AT_AN_END),
    (["--map-style", "--save-steps", 8], AT_AN_END),
]

# Of the cases that are alike for all three, one stands for the others.
_QUICK = {
    ("lightning_trainer.py", 0),
    ("lightning_trainer.py", 1),
    ("lightning_trainer.py", 4),
    ("lightning_fabric.py", 1),
    ("accelerate_trainer.py", 0),
    ("accelerate_trainer.py", 1),
}


def _cases() -> list[Any]:
    return [
        pytest.param(
            example,
            *case,
            marks=[] if (example, number) in _QUICK else [pytest.mark.slow],
            id=f"{example}-{'-'.join(map(str, case[0]))}-{case[1].get('ranks', 1)}",
        )
        for example in EXAMPLES
        for number, case in enumerate(_CASES)
    ]


@pytest.mark.parametrize(("example", "arguments", "course"), _cases())
def test_a_killed_training_goes_on_with_the_same_losses(
    example: str, arguments: list[Any], course: dict[str, Any], trainers: Programs, tmp_path: Path
) -> None:
    if not importlib.util.find_spec(EXAMPLES[example]):
        pytest.skip(f"{EXAMPLES[example]} is in the dependency group 'interop'")
    assert_goes_on_alike(trainers, example, tmp_path, *arguments, **course)


@pytest.mark.skipif(
    not importlib.util.find_spec("lightning"), reason="lightning is in the dependency group 'interop'"
)
@pytest.mark.parametrize("course", [IN_AN_EPOCH, pytest.param(IN_AN_EPOCH_OF_TWO, marks=pytest.mark.slow)])
def test_a_stream_that_knows_no_length_loses_no_batch_to_lightning(
    course: dict[str, Any], trainers: Programs, tmp_path: Path
) -> None:
    assert_goes_on_alike(trainers, "lightning_trainer.py", tmp_path, "--no-length", **course)
