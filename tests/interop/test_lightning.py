"""Lightning trains with our loaders: the Trainer, and Fabric."""

from __future__ import annotations

import warnings
import weakref
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus import in_turn

import asyncloader as al

from .points import COUNT, KINDS, assert_trained, inputs, loss_of, point

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports is deprecated here and there
    lightning: Any = pytest.importorskip("lightning", reason="lightning is in the dependency group 'interop'")

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    # Advice on the number of workers and logging intervals, and its own use of what torch deprecates.
    pytest.mark.filterwarnings("ignore::Warning:lightning"),
    pytest.mark.filterwarnings("ignore:.*:lightning.fabric.utilities.warnings.PossibleUserWarning"),
]

EPOCHS = 3


class Line(lightning.LightningModule):  # type: ignore[misc]  # only known at run time
    """A linear model that remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.epochs: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.losses: list[float] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.batches.append(batch["number"].tolist())
        if self.epochs:  # Lightning opens none when it resumes in the middle of one
            self.epochs[-1] += self.batches[-1]
        loss = loss_of(self.net, batch)
        self.losses.append(loss.item())
        return loss

    def predict_step(self, batch: Any, _: int) -> torch.Tensor:
        self.net(inputs(batch))
        numbers: torch.Tensor = batch["number"]
        return numbers

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2)


def make_trainer(**options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    quiet |= {"enable_progress_bar": False, "max_epochs": EPOCHS}
    return lightning.Trainer(accelerator="cpu", devices=1, **{**quiet, **options})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_trainer_fits_each_sample_once_per_epoch(kind: str, workers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Line()
    make_trainer().fit(model, KINDS[kind](tmp_path, workers))
    assert len(model.epochs) == EPOCHS
    assert_trained(model.epochs, model.losses)


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_takes_a_loader_from_the_model_s_hook(kind: str, tmp_path: Path) -> None:
    # Inside hooks Lightning wraps the constructors of all loaders.
    class WithLoader(Line):
        def train_dataloader(self) -> Any:
            return KINDS[kind](tmp_path, 0)

    torch.manual_seed(0)
    model = WithLoader()
    make_trainer().fit(model)
    assert_trained(model.epochs, model.losses)


@pytest.mark.parametrize("hook", [False, True], ids=["argument", "hook"])
@pytest.mark.parametrize("kind", ["map style", "async map style", "from_urls"])
def test_a_loader_made_anew_for_predicting_keeps_its_options(kind: str, hook: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lanes": 4} if kind == "from_urls" else {"drop_last": False}
    options |= {"rank": 0, "world_size": 1}

    class WithLoader(Line):
        def predict_dataloader(self) -> Any:
            return KINDS[kind](tmp_path, 2, **options)

    trainer = make_trainer()
    given = () if hook else (KINDS[kind](tmp_path, 2, **options),)
    predicted = trainer.predict(WithLoader(), *given)
    assert sorted(torch.cat(predicted).tolist()) == list(range(COUNT))
    used = trainer.predict_dataloaders
    assert isinstance(used, al.DataLoader)
    assert {name: getattr(used, name) for name in options} == options
    assert used.num_workers == 2


class LineByHand(Line):
    """Takes its batches from the loader itself, of which Lightning then reads none ahead."""

    def training_step(self, dataloader_iter: Any) -> torch.Tensor:  # Lightning goes by the name
        batch, number, _ = next(dataloader_iter)
        return super().training_step(batch, number)


class SavesOnce(lightning.Callback):  # type: ignore[misc]  # only known at run time
    """Saves a checkpoint after the third step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            trainer.save_checkpoint(self._path)


@pytest.mark.parametrize("line", [LineByHand, Line])
def test_a_checkpoint_of_the_trainer_holds_the_stream_s_position(line: type[Line], tmp_path: Path) -> None:
    # Of a loader without a length Lightning reads one batch ahead, unless the step takes the iterator.
    (tmp_path / "shards").mkdir()

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = line()
        trainer = make_trainer(callbacks=[SavesOnce(tmp_path / "state.ckpt")])
        trainer.fit(model, KINDS["from_urls"](tmp_path / "shards", 0), **options)
        return model.batches

    whole = fit()
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[3:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on_with_every_kind(
    kind: str, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        trainer = make_trainer(callbacks=[SavesOnce(tmp_path / "state.ckpt")], max_epochs=2)
        trainer.fit(model, KINDS[kind](tmp_path / "shards", workers), **options)
        return model.batches

    whole = fit()
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[3:]


class PointsInOrder(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Of torch's own kind, without a length, and with a position."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Any:
        while self.done < COUNT:
            self.done += 1
            yield point(self.done - 1)
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def test_a_checkpoint_loses_no_batch_of_an_iterable_dataset_that_is_read_ahead(tmp_path: Path) -> None:
    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        trainer = make_trainer(callbacks=[SavesOnce(tmp_path / "state.ckpt")], max_epochs=2)
        trainer.fit(model, al.DataLoader(PointsInOrder(), 4), **options)
        return model.batches

    whole = fit()
    assert len(whole) == 2 * COUNT // 4
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[3:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_fabric_trains_on_each_sample_once_per_epoch(kind: str, workers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    net = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.2))
    loader = fabric.setup_dataloaders(KINDS[kind](tmp_path, workers))
    epochs: list[list[int]] = []
    losses: list[float] = []
    for _ in range(EPOCHS):
        epochs.append([])
        for batch in loader:
            epochs[-1] += batch["number"].tolist()
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert_trained(epochs, losses)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_of_a_map_style_dataset_is_saved_and_loaded(workers: int, tmp_path: Path) -> None:
    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        trainer = make_trainer()
        trainer.fit(model, KINDS["map style"](tmp_path, workers), **options)
        trainer.save_checkpoint(tmp_path / "state.ckpt")
        return model.epochs

    assert len(fit()) == EPOCHS
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_within_an_epoch_of_a_map_style_dataset_goes_on_there(
    workers: int, tmp_path: Path
) -> None:
    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        trainer = make_trainer(callbacks=[SavesOnce(tmp_path / "state.ckpt")])
        trainer.fit(model, KINDS["map style"](tmp_path, workers), **options)
        return model.batches

    whole = fit()
    assert len(whole) == EPOCHS * COUNT // 4
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[3:]


# --- streams that know their length ---


def write_counted(folder: Path) -> list[str]:
    """Shards with a manifest, which says how many points are in each."""
    paths = []
    for shard in range(4):
        with al.ShardWriter(folder / f"points-{shard}.jsonl") as writer:
            for number in range(shard, COUNT, 4):
                writer.write(point(number))
        paths.append(str(folder / f"points-{shard}.jsonl"))
    return paths


def counted(folder: Path, workers: int = 0) -> al.DataLoader[Any]:
    paths = write_counted(folder) if not any(folder.iterdir()) else sorted(map(str, folder.glob("*.jsonl")))
    recipe = al.from_urls(paths).select("number", "x", "y").shuffle(8)
    return al.DataLoader(recipe, batch_size=4, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_knows_how_many_steps_a_stream_makes(workers: int, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(Line(), counted(tmp_path, workers))
    assert trainer.num_training_batches == COUNT // 4
    assert trainer.estimated_stepping_batches == trainer.global_step == EPOCHS * COUNT // 4


@pytest.mark.parametrize(("interval", "times"), [(0.5, 2), (0.25, 4), (1.0, 1)])
def test_validation_runs_at_parts_of_a_stream_s_epoch(interval: float, times: int, tmp_path: Path) -> None:
    class Validated(Line):
        def __init__(self) -> None:
            super().__init__()
            self.validated_after: list[int] = []
            self.seen: list[int] = []

        def on_validation_start(self) -> None:
            self.validated_after.append(len(self.batches))

        def validation_step(self, batch: Any, _: int) -> None:
            self.seen += batch["number"].tolist()

    for name in ("train", "val"):
        (tmp_path / name).mkdir()
    trainer = make_trainer(val_check_interval=interval, num_sanity_val_steps=0)
    model = Validated()
    trainer.fit(model, counted(tmp_path / "train"), counted(tmp_path / "val"))
    every = COUNT // 4 // times
    assert model.validated_after == list(range(every, EPOCHS * COUNT // 4 + 1, every))
    assert sorted(model.seen) == sorted(EPOCHS * times * list(range(COUNT)))


def test_the_trainer_s_bar_has_a_total_for_a_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = lightning.pytorch.callbacks.TQDMProgressBar(refresh_rate=1)
    make_trainer(enable_progress_bar=True, callbacks=[bar]).fit(Line(), counted(tmp_path))
    shown = capsys.readouterr()
    assert f"| {COUNT // 4}/{COUNT // 4} [" in shown.out + shown.err


def test_a_checkpoint_of_a_stream_that_knows_its_length_is_of_the_batch_it_was_saved_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "shards").mkdir()

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        make_trainer(callbacks=[SavesOnce(tmp_path / "state.ckpt")]).fit(
            model, counted(tmp_path / "shards"), **options
        )
        return model.batches

    whole = fit()
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[3:]


def test_an_epoch_that_the_trainer_cuts_to_the_length_of_the_first_is_warned_of(tmp_path: Path) -> None:
    paths = []
    for shard, count in enumerate((1, 6, 3, 12, 2, 8)):
        paths.append(str(tmp_path / f"points-{shard}.jsonl"))
        with al.ShardWriter(paths[-1]) as writer:
            for number in range(count):
                writer.write(point(number))
    # By an index all epochs are of one length.
    recipe = in_turn(al.from_urls(paths)).select("number", "x", "y").shuffle(8)
    loader = al.DataLoader(recipe, 4, lanes=3)
    lengths = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
    longer = next(epoch for epoch in range(5) if lengths[epoch] > lengths[0])
    loader.set_epoch(0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make_trainer(max_epochs=6).fit(Line(), loader)
    told = f"epoch {longer} was left after {lengths[0]} of its {lengths[longer]} batches"
    assert any(told in str(warning.message) for warning in warned)


@pytest.mark.parametrize("knows_length", [False, True])
@pytest.mark.parametrize("moment", ["on_train_epoch_end", "on_train_batch_end", "on_validation_end"])
def test_a_checkpoint_of_the_end_of_an_epoch_goes_on_with_the_next(
    moment: str, knows_length: bool, tmp_path: Path
) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()

    class SavesOnce(lightning.Callback):  # type: ignore[misc]  # only known at run time
        pass

    def save(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == COUNT // 4 and not (tmp_path / "state.ckpt").exists():
            trainer.save_checkpoint(tmp_path / "state.ckpt")

    setattr(SavesOnce, moment, save)

    class Validated(Line):
        def validation_step(self, batch: Any, _: int) -> None:
            pass

    def make(folder: Path) -> al.DataLoader[Any]:
        return counted(folder) if knows_length else KINDS["from_urls"](folder, 0)

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Validated()
        trainer = make_trainer(callbacks=[SavesOnce()], num_sanity_val_steps=0)
        trainer.fit(model, make(tmp_path / "train"), make(tmp_path / "val"), **options)
        return model.batches

    whole = fit()
    assert len(whole) == EPOCHS * COUNT // 4
    resumed = fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False)
    assert len(resumed) == (EPOCHS - 1) * COUNT // 4
    for epoch in (resumed[: COUNT // 4], resumed[COUNT // 4 :]):
        assert sorted(chain(*epoch)) == list(range(COUNT))
    # In other cases Lightning does not load the position, or opens passes and reads none of their batches.
    if knows_length and moment != "on_train_epoch_end":
        assert resumed == whole[COUNT // 4 :]


# --- what must not happen behind anybody's back ---


def test_a_loader_that_fabric_has_set_up_says_no_position_and_does_not_begin_anew(tmp_path: Path) -> None:
    # Its wrapper tells samplers their epoch, counted from 0 also after a resume.
    fabric = lightning.Fabric(accelerator="cpu", devices=1)

    def make() -> al.DataLoader[Any]:
        sampler: Any = torch.utils.data.DistributedSampler(list(range(8)), 1, 0)  # type: ignore[arg-type]
        return al.DataLoader(list(range(8)), 2, sampler=sampler)

    loader = make()
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    state, resumed = loader.state_dict(), make()
    wrapped = fabric.setup_dataloaders(resumed)
    assert not hasattr(wrapped, "state_dict")
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match=r"in epoch 1 behind 1 of 4 batches, but set_epoch\(0\)"):
        list(wrapped)


def test_a_program_that_has_imported_lightning_can_let_go_of_what_it_holds() -> None:
    loader = al.DataLoader(range(4))
    held = torch.zeros(1)
    gone = weakref.ref(held)
    for _ in loader:  # looks for who iterates it
        pass
    del held
    assert gone() is None
