"""transformers' Trainer trains with our loaders, is killed, and goes on as if it had not been."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

import asyncloader as al

from .trainings import assert_goes_on_alike

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="transformers is in the dependency group 'interop'"
)

EXAMPLE = "transformers_trainer.py"
# An epoch has eight steps on one rank, and four on two.
IN_AN_EPOCH = {"die_at": 13, "goes_on_behind": 10}
IN_AN_EPOCH_OF_TWO = {"die_at": 7, "goes_on_behind": 5, "ranks": 2}

_slow = pytest.mark.slow


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--map-style"],
        ["--max-steps", 24],
        pytest.param(["--workers", 2], marks=_slow),
        pytest.param(["--map-style", "--workers", 2], marks=_slow),
    ],
    ids=str,
)
def test_a_killed_training_goes_on_with_the_same_losses(
    arguments: list[Any], trainers: Programs, tmp_path: Path
) -> None:
    assert_goes_on_alike(trainers, EXAMPLE, tmp_path, *arguments, **IN_AN_EPOCH)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        pytest.param(["--map-style"], marks=_slow),
        pytest.param(["--workers", 2], marks=_slow),
        pytest.param(["--map-style", "--workers", 2], marks=_slow),
    ],
    ids=str,
)
def test_two_ranks_that_are_killed_go_on_with_the_same_losses(
    arguments: list[Any], trainers: Programs, tmp_path: Path
) -> None:
    assert_goes_on_alike(trainers, EXAMPLE, tmp_path, *arguments, **IN_AN_EPOCH_OF_TWO)


# There it asks for the next epoch, and takes an empty pass for the end of the data.
@pytest.mark.parametrize("arguments", [pytest.param([], marks=_slow), ["--map-style"]], ids=str)
def test_a_checkpoint_of_an_epoch_s_last_step_goes_on_with_the_next(
    arguments: list[Any], trainers: Programs, tmp_path: Path
) -> None:
    arguments = [*arguments, "--save-steps", 8]
    assert_goes_on_alike(trainers, EXAMPLE, tmp_path, *arguments, die_at=13, goes_on_behind=8)


def test_without_ignore_data_skip_a_stream_is_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = al.DataLoader(al.from_iterable(range(8)), 2)
    with pytest.raises(TypeError, match=r"a dataset is not iterated itself.*ignore_data_skip=True"):
        list(accelerate.skip_first_batches(loader, 1))  # what transformers calls then
