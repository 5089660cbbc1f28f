"""accelerate trains with our loaders: ``Accelerator().prepare``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import asyncloader as al

from .points import KINDS, AsyncPoints, assert_trained, loss_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports is deprecated here and there
    accelerate: Any = pytest.importorskip(
        "accelerate", reason="accelerate is in the dependency group 'interop'"
    )

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings("ignore::Warning:accelerate"),
]

EPOCHS = 3


@pytest.fixture
def accelerator() -> Any:
    return accelerate.Accelerator(cpu=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prepared_loader_gives_each_sample_once_per_epoch(
    kind: str, workers: int, accelerator: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    given = KINDS[kind](tmp_path, workers)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.2), given)
    assert isinstance(loader, torch.utils.data.DataLoader)
    # A dataset that torch's own loop cannot read must keep its loader.
    assert (loader is given) == (kind != "map style")
    epochs: list[list[int]] = []
    losses: list[float] = []
    for _ in range(EPOCHS):
        epochs.append([])
        for batch in loader:
            with accelerator.accumulate(model):
                epochs[-1] += batch["number"].tolist()
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    assert_trained(epochs, losses)


@pytest.mark.parametrize("kind", ["async map style", "from_urls"])
def test_a_saved_state_has_the_position_of_a_loader_that_is_handed_on(
    kind: str, accelerator: Any, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()

    def prepared() -> Any:
        return accelerator.prepare(KINDS[kind](tmp_path / "shards", 0))

    torch.manual_seed(0)
    loader = prepared()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    accelerator.save_state(str(tmp_path / "state"))
    rest = [batch["number"].tolist() for batch in batches]
    accelerator.free_memory()
    resumed = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert [batch["number"].tolist() for batch in resumed] == rest != []


# Of a map-style dataset it makes a loader of torchdata's anew, which does not get a shuffled order back, out
# of torch's own loader neither (accelerate 1.15.0, torchdata 0.11.0).
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"map style"}))
def test_asked_for_stateful_loaders_it_saves_the_position_of_each_that_it_hands_on(
    kind: str, workers: int, tmp_path: Path
) -> None:
    pytest.importorskip("torchdata", reason="torchdata is in the dependency group 'interop'")
    (tmp_path / "shards").mkdir()
    options = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)

    def prepared() -> tuple[Any, Any]:
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)
        torch.manual_seed(0)
        return accelerator, accelerator.prepare(KINDS[kind](tmp_path / "shards", workers))

    accelerator, loader = prepared()
    whole = []
    for number, batch in enumerate(loader, 1):
        whole.append(batch["number"].tolist())
        if number == 3:
            accelerator.save_state(str(tmp_path / "state"))
    accelerator.free_memory()
    accelerator, resumed = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert [batch["number"].tolist() for batch in resumed] == whole[3:] != []
    accelerator.free_memory()


def test_several_ranks_need_a_sampler_of_their_own_for_a_dataset_that_torch_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The answer of a process group of two; the group itself is in test_ddp.py.
    monkeypatch.setattr("asyncloader.loader.loader.process_group", lambda: (0, 2))
    with pytest.raises(RuntimeError, match=r"cannot deal a AsyncPoints to 2 ranks.*DistributedSampler"):
        _ = al.DataLoader(AsyncPoints(), 4)._is_accelerate_prepared
    sampler: Any = torch.utils.data.DistributedSampler(AsyncPoints(), 2, 0)  # type: ignore[arg-type]
    assert al.DataLoader(AsyncPoints(), 4, sampler=sampler)._is_accelerate_prepared
