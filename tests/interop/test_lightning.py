"""Lightning trains with our loaders: the Trainer, and Fabric."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus import in_turn

import asyncloader as al

from .points import COUNT, KINDS, Points, assert_trained, inputs, loss_of, point, write_shards

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports is deprecated here and there
    lightning: Any = pytest.importorskip("lightning", reason="lightning is in the dependency group 'interop'")
    fetchers: Any = pytest.importorskip("lightning.pytorch.loops.fetchers")
    fit_loop: Any = pytest.importorskip("lightning.pytorch.loops.fit_loop")

PREFETCHER = fetchers._PrefetchDataFetcher

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


def warnings_of(fit: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """What a training warns of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(*arguments, **options)
    return "\n".join(str(warning.message) for warning in warned)


def test_a_stream_s_checkpoint_loses_no_batch_when_lightning_renames_what_reads_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fetchers, "_PrefetchDataFetcher")
    test_a_checkpoint_of_the_trainer_holds_the_stream_s_position(Line, tmp_path)


class ReadsAheadOtherwise(PREFETCHER):  # type: ignore[misc,valid-type]  # only known at run time
    """As a release might that keeps what it has read ahead under another name."""

    def __getattribute__(self, name: str) -> Any:
        if name == "batches" and "asyncloader" in sys._getframe(1).f_globals["__name__"]:
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_a_release_that_reads_ahead_in_an_unknown_way_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_loop, "_select_data_fetcher", lambda *_: ReadsAheadOtherwise())
    warned = warnings_of(make_trainer(max_epochs=1).fit, Line(), KINDS["from_urls"](tmp_path, 0))
    assert "does not know this release of Lightning" in warned
    assert "may miss one batch" in warned


def test_a_release_whose_epoch_is_not_found_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(max_epochs=1)
    progress = trainer.fit_loop.epoch_progress

    class Renamed(type(trainer.fit_loop)):  # type: ignore[misc]  # only known at run time
        @property
        def epoch_progress(self) -> Any:
            if "asyncloader" in sys._getframe(1).f_globals["__name__"]:
                raise AttributeError("epoch_progress")
            return progress

    del trainer.fit_loop.__dict__["epoch_progress"]
    trainer.fit_loop.__class__ = Renamed
    warned = warnings_of(trainer.fit, Line(), KINDS["from_urls"](tmp_path, 0))
    assert "does not know this release of Lightning" in warned
    assert "begin with the order of epoch 0" in warned


def test_a_loader_that_is_opened_before_its_checkpoint_is_read_is_warned_of(tmp_path: Path) -> None:
    class Scheduled(Line):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            assert self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    (tmp_path / "shards").mkdir()
    path = tmp_path / "state.ckpt"
    trainer, loader = make_trainer(callbacks=[SavesOnce(path)]), counted(tmp_path / "shards")
    assert "opened the loader before" not in warnings_of(trainer.fit, Scheduled(), loader)
    fit, loader = make_trainer().fit, counted(tmp_path / "shards")
    assert "opened the loader before" in warnings_of(
        fit, Scheduled(), loader, ckpt_path=path, weights_only=False
    )


class Wrapping(al.DataLoader[Any]):
    """A subclass with an iterator of its own."""

    def _get_iterator(self) -> Any:
        return map(self._marked, super()._get_iterator())

    @staticmethod
    def _marked(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "number": batch["number"] + 1000}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["stream", "map style", "iterable"])
def test_a_subclass_s_own_iterator_is_used_and_loses_no_batch_to_a_checkpoint(
    kind: str, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()

    def make() -> Wrapping:
        if kind == "stream":
            paths = write_shards(tmp_path / "shards")
            return Wrapping(al.from_urls(paths).select_columns("number", "x", "y"), 4, num_workers=workers)
        dataset: Any = Points() if kind == "map style" else PointsInOrder()
        return Wrapping(dataset, 4, num_workers=min(workers, 1) if kind == "iterable" else workers)

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Line()
        saving = SavesOnce(tmp_path / "state.ckpt")
        make_trainer(callbacks=[saving], max_epochs=2).fit(model, make(), **options)
        return model.batches

    whole = fit()
    assert len(whole) == 2 * COUNT // 4
    assert sorted(chain(*whole)) == sorted(2 * list(range(1000, 1000 + COUNT)))
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
    """Shards with an index, which says how many points are in each."""
    paths = []
    for shard in range(4):
        with al.ShardWriter(folder / f"points-{shard}.jsonl") as writer:
            for number in range(shard, COUNT, 4):
                writer.write(point(number))
        paths.append(str(folder / f"points-{shard}.jsonl"))
    return paths


def counted(folder: Path, workers: int = 0) -> al.DataLoader[Any]:
    paths = write_counted(folder) if not any(folder.iterdir()) else sorted(map(str, folder.glob("*.jsonl")))
    recipe = al.from_urls(paths).select_columns("number", "x", "y").shuffle(8)
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
    recipe = in_turn(al.from_urls(paths)).select_columns("number", "x", "y").shuffle(8)
    loader = al.DataLoader(recipe, 4, lanes=3)
    lengths = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
    longer = next(epoch for epoch in range(5) if lengths[epoch] > lengths[0])
    loader.set_epoch(0)
    warned = warnings_of(make_trainer(max_epochs=6).fit, Line(), loader)
    assert f"epoch {longer} was left after {lengths[0]} of its {lengths[longer]} batches" in warned


def _counted_dealt_by_sampler(folder: Path) -> al.DataLoader[Any]:
    sampler: Any = torch.utils.data.DistributedSampler(Points(), 1, 0, seed=0)
    return al.DataLoader(Points(), 4, sampler=sampler, num_workers=2)


ENDING: dict[str, Callable[[Path], al.DataLoader[Any]]] = {
    "a stream": lambda folder: KINDS["from_urls"](folder, 0),
    "a stream with a length": counted,
    "a map-style dataset with an epoch": _counted_dealt_by_sampler,
    "an iterable dataset": lambda _: al.DataLoader(PointsInOrder(), 4),
}


@pytest.mark.parametrize("kind", ENDING)
@pytest.mark.parametrize("moment", ["on_train_epoch_end", "on_train_batch_end", "on_validation_end"])
def test_a_checkpoint_of_the_end_of_an_epoch_goes_on_with_the_order_of_the_next(
    moment: str, kind: str, tmp_path: Path
) -> None:
    # It loads the loader's state in some of these cases, and opens passes of which it reads no batch.
    for name in ("train", "val"):
        (tmp_path / name).mkdir()

    class SavesOnce(lightning.Callback):  # type: ignore[misc]  # only known at run time
        pass

    def save(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2 * COUNT // 4 and not (tmp_path / "state.ckpt").exists():
            trainer.save_checkpoint(tmp_path / "state.ckpt")

    setattr(SavesOnce, moment, save)

    class Validated(Line):
        def validation_step(self, batch: Any, _: int) -> None:
            pass

    def fit(**options: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = Validated()
        trainer = make_trainer(callbacks=[SavesOnce()], num_sanity_val_steps=0, max_epochs=4)
        trainer.fit(model, ENDING[kind](tmp_path / "train"), counted(tmp_path / "val"), **options)
        return model.batches

    whole = fit()
    assert len(whole) == 4 * COUNT // 4
    assert fit(ckpt_path=tmp_path / "state.ckpt", weights_only=False) == whole[2 * COUNT // 4 :]


def test_loaders_that_the_trainer_makes_anew_for_each_epoch_have_the_order_of_that_epoch(
    tmp_path: Path,
) -> None:
    class Reloading(Line):
        def train_dataloader(self) -> Any:
            return KINDS["from_urls"](tmp_path, 0)

    model, again = Line(), Reloading()
    make_trainer().fit(model, KINDS["from_urls"](tmp_path, 0))
    make_trainer(reload_dataloaders_every_n_epochs=1).fit(again)
    assert again.epochs == model.epochs


def test_an_epoch_that_a_program_has_chosen_stays_under_the_trainer(tmp_path: Path) -> None:
    epochs = []
    for first in (0, 1):
        loader = KINDS["from_urls"](tmp_path, 0)
        loader.set_epoch(first)
        model = Line()
        make_trainer().fit(model, loader)
        epochs.append(model.epochs)
    assert epochs[1][:-1] == epochs[0][1:]


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
    with pytest.raises(ValueError, match=r"in epoch 1 after 1 of 4 batches, but set_epoch\(0\)"):
        list(wrapped)


def test_a_program_that_has_imported_lightning_can_let_go_of_what_it_holds() -> None:
    loader = al.DataLoader(range(4))
    held = torch.zeros(1)
    gone = weakref.ref(held)
    for _ in loader:  # looks for who iterates it
        pass
    del held
    assert gone() is None
