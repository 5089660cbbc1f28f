"""What a loader's user sees of its worker processes: their life, their death, and the code they run."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Corpus
from programs import Programs
from torch.utils.data import get_worker_info
from waiting import AT_ONCE_S

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.topology import Topology

from .harness import python, recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")


def _with_pid(number: int) -> dict[str, int]:
    time.sleep(0.005)
    return {"number": number, "pid": os.getpid()}


def endless(topology: Topology) -> Any:
    return topology.split(range(1_000_000))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_reported_within_a_second_with_its_number_and_signal(
    number: signal.Signals,
) -> None:
    with testing.check_leaks():
        recipe = al.from_iterable(endless).map(_with_pid)
        loader = al.DataLoader(recipe, 4, num_workers=2, worker_restarts=0)
        batches = iter(loader)
        next(batches)
        pid = int(next(batches)["pid"][0])
        os.kill(pid, number)
        begun = time.monotonic()
        with pytest.raises(al.WorkerDiedError, match=number.name) as caught:
            for _ in batches:
                pass
        took_s = time.monotonic() - begun
        del batches, loader
        caught.value.__traceback__ = None
    assert took_s < AT_ONCE_S
    assert (caught.value.worker, caught.value.pid, caught.value.exitcode) == (1, pid, -number)
    assert "worker 1" in str(caught.value)


async def test_a_killed_worker_is_reported_in_an_async_loop_too() -> None:
    recipe = al.from_iterable(endless).map(_with_pid)
    loader = al.DataLoader(recipe, 4, num_workers=2, worker_restarts=0)
    begun = None
    with pytest.raises(al.WorkerDiedError, match="SIGKILL"):
        async for batch in loader:
            if begun is None:
                begun = time.monotonic()
                os.kill(int(batch["pid"][0]), signal.SIGKILL)
    assert begun is not None and time.monotonic() - begun < AT_ONCE_S


def test_a_worker_killed_while_nothing_comes_is_reported_at_once(
    make_corpus: Callable[..., Corpus], tmp_path: Path
) -> None:
    corpus = make_corpus("jsonl")

    def tell_pid(worker: int) -> None:
        (tmp_path / str(worker)).write_text(str(os.getpid()))

    with testing.serve(corpus.folder, [testing.Stall(byte=20, seconds=3600)]) as server:
        urls = [server.url_of(Path(path).name) for path in corpus.paths[:1]]
        loader = al.DataLoader(
            al.from_urls(urls, index=None), 4, num_workers=1, worker_init_fn=tell_pid, worker_restarts=0
        )
        batches = iter(loader)
        while not server.counters.concurrent:
            time.sleep(0.005)
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)

        threading.Timer(0.2, kill).start()
        with pytest.raises(al.WorkerDiedError, match="worker 0"):
            next(batches)
        assert time.monotonic() - killed[0] < AT_ONCE_S


def test_after_a_workers_death_its_loader_goes_on_from_its_state() -> None:
    recipe = al.from_iterable(lambda topology: topology.split(range(60))).map(_with_pid)
    loader = al.DataLoader(recipe, 2, num_workers=2, worker_restarts=0)
    delivered: list[int] = []
    with pytest.raises(al.WorkerDiedError):
        for batch in loader:
            if not delivered:
                os.kill(int(batch["pid"][0]), signal.SIGKILL)
            delivered += batch["number"].tolist()
    loader.load_state_dict(loader.state_dict())
    delivered += [number for batch in loader for number in batch["number"].tolist()]
    assert sorted(delivered) == list(range(60))


# --- the user's own errors ---


class Unhappy(Exception):
    """Raised by this module's functions; has more to it than a message."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        return Unhappy, (self.code,)


def _refuse(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"] == "4-6":
        raise Unhappy(7)
    return sample


async def _refuse_async(sample: dict[str, Any]) -> dict[str, Any]:
    return _refuse(sample)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "map on threads", "async map", "filter"])
def test_an_error_of_the_users_function_keeps_its_type_and_says_where(
    kind: str, workers: int, make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    corpus = make_corpus("tar")
    plain = recipe_of(corpus, served)
    recipe = {
        "map": plain.map(_refuse),
        "map on threads": plain.map(_refuse, concurrency=4),
        "async map": plain.map(_refuse_async, concurrency=4),
        "filter": plain.filter(_refuse),
    }[kind]
    loader = al.DataLoader(recipe, 4, num_workers=workers, lanes=2, rank=0, world_size=1)
    with pytest.raises(Unhappy) as caught:
        list(loader)
    assert type(caught.value) is Unhappy and caught.value.code == 7
    notes = "\n".join(caught.value.__notes__)
    assert "__key__ '4-6'" in notes
    assert corpus.urls(served)[4] in notes
    assert "in lane 0 of 2, rank 0, epoch 0" in notes
    if workers:
        assert "in worker 0 (pid" in notes and "in _refuse" in notes, "the worker's traceback is shown"


@pytest.mark.parametrize("concurrency", [1, 8])
def test_what_comes_before_a_failed_sample_is_delivered_and_nothing_after_it(concurrency: int) -> None:
    async def fail_from_21(number: int) -> int:
        if number >= 21:
            raise Unhappy(number)
        return number

    recipe = al.from_iterable(lambda topology: topology.split(range(100)))
    loader = al.DataLoader(recipe.map(fail_from_21, concurrency=concurrency), None)
    delivered: list[int] = []
    with pytest.raises(Unhappy, match="code 21"):
        delivered.extend(loader)
    assert delivered == list(range(21))


def test_nothing_behind_a_sample_that_failed_is_delivered_though_it_was_done() -> None:
    async def fail_at_9(number: int) -> int:
        if number == 9:
            raise Unhappy(number)
        return number

    recipe = al.from_iterable(lambda topology: topology.split(range(100)))
    for concurrency in (2, 4, 8, 16):
        loader = al.DataLoader(recipe.map(fail_at_9, concurrency=concurrency), None)
        delivered: list[int] = []
        with pytest.raises(Unhappy, match="code 9"):
            delivered.extend(loader)
        assert delivered == list(range(9))


def test_an_error_of_the_worker_init_fn_reaches_the_consumer() -> None:
    def fail(worker: int) -> None:
        raise Unhappy(worker + 1)

    with pytest.raises(Unhappy):
        list(al.DataLoader(al.from_iterable(endless), 4, num_workers=2, worker_init_fn=fail))


def test_an_error_of_the_collate_fn_names_lane_and_rank() -> None:
    def fail(samples: list[Any]) -> Any:
        raise Unhappy(3)

    with pytest.raises(Unhappy) as caught:
        list(al.DataLoader(al.from_iterable(endless), 4, num_workers=2, collate_fn=fail))
    assert any("lane 0 of 2" in note for note in caught.value.__notes__)


# --- seeds and torch's worker info ---


def _draw(_: int) -> dict[str, Any]:
    return {
        "torch": torch.rand(1).item(),
        "numpy": np.random.rand(),
        "python": random.random(),
    }


def test_each_worker_draws_random_numbers_of_its_own() -> None:
    loader = al.DataLoader(
        al.from_iterable(lambda topology: topology.split(range(6))).map(_draw), None, num_workers=3
    )
    drawn = list(loader)
    for name in ("torch", "numpy", "python"):
        assert len({sample[name] for sample in drawn}) == 6


def test_the_same_generator_gives_the_same_draws_and_each_epoch_others() -> None:
    def epochs() -> list[Any]:
        recipe = al.from_iterable(lambda topology: topology.split(range(6))).map(_draw)
        generator = torch.Generator().manual_seed(4)
        with al.DataLoader(recipe, None, num_workers=2, generator=generator) as loader:
            return [list(loader), list(loader)]

    one, other = epochs(), epochs()
    assert one == other
    assert one[0] != one[1]


def _tell_worker(number: int) -> dict[str, Any]:
    info = get_worker_info()
    return {"worker": info.id, "of": info.num_workers, "seed": info.seed, "initial": torch.initial_seed()}


def test_get_worker_info_tells_torchs_code_where_it_runs() -> None:
    recipe = al.from_iterable(lambda topology: topology.split(range(6))).map(_tell_worker)
    told = list(al.DataLoader(recipe, None, num_workers=3))
    assert [sample["worker"] for sample in told] == [0, 1, 2, 0, 1, 2]
    assert {sample["of"] for sample in told} == {3}
    assert all(sample["seed"] == sample["initial"] for sample in told)
    assert len({sample["seed"] - sample["worker"] for sample in told}) == 1, "base seed + worker, as in torch"
    assert get_worker_info() is None


def test_worker_init_fn_runs_once_in_each_worker_after_seeding(tmp_path: Path) -> None:
    def init(worker: int) -> None:
        with open(tmp_path / str(worker), "a") as file:
            file.write(f"{torch.initial_seed() - get_worker_info().seed}\n")

    loader = al.DataLoader(
        al.from_iterable(lambda topology: topology.split(range(9))), num_workers=3, worker_init_fn=init
    )
    list(loader)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {str(n): "0\n" for n in range(3)}


def test_a_worker_without_a_lane_is_not_started(tmp_path: Path) -> None:
    def init(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    recipe = al.from_iterable(lambda topology: topology.split(range(9)))
    list(al.DataLoader(recipe, num_workers=4, lanes=2, worker_init_fn=init))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_the_topology_tells_lane_rank_and_epoch_in_workers() -> None:
    def tell(topology: Topology) -> list[Any]:
        return [(topology.lane, topology.lanes, topology.rank, topology.world_size, topology.epoch)]

    loader = al.DataLoader(al.from_iterable(tell), None, num_workers=2, rank=1, world_size=2)
    loader.set_epoch(5)
    assert [tuple(map(int, told)) for told in loader] == [(1, 4, 1, 2, 5), (3, 4, 1, 2, 5)]


# --- the program's settings ---


class Mild(UserWarning):
    """A category of the program's own, whose filter says what becomes of it."""


def _settings(number: int) -> dict[str, Any]:
    """What a function finds around itself."""
    from PIL import Image, ImageFile

    with warnings.catch_warnings(record=True) as shown:
        warnings.warn("quiet", Mild, stacklevel=1)
    try:
        warnings.warn("loud", FutureWarning, stacklevel=1)
        raised = False
    except FutureWarning:
        raised = True
    return {
        "images": (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS),
        "torch": (
            str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
        ),
        "levels": (logging.root.level, logging.getLogger("a.library").level, logging.root.manager.disable),
        "warnings": (len(shown), raised),
        "place": (os.getcwd(), sys.path[0]),
    }


@pytest.fixture
def set_by_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from PIL import Image, ImageFile

    dtype = torch.get_default_dtype()
    library = logging.getLogger("a.library")
    levels = logging.root.level, library.level, logging.root.manager.disable
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 30)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    logging.root.setLevel(logging.DEBUG)
    library.setLevel(logging.ERROR)
    logging.disable(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.filterwarnings("ignore", message="qui", category=Mild)
        yield
    logging.root.setLevel(levels[0])
    library.setLevel(levels[1])
    logging.disable(levels[2])
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("set_by_the_program")
def test_workers_take_over_what_the_program_has_set() -> None:
    found = [
        next(iter(al.DataLoader(al.from_iterable([0]).map(_settings), None, num_workers=workers)))
        for workers in (0, 1)
    ]
    assert found[1] == found[0]
    assert found[0]["warnings"] == [0, True], "the fixture has set something"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_says_that_settings_may_be_missing_there(workers: int) -> None:
    recipe = al.from_iterable([0]).map(lambda number: 1 // number)
    with pytest.raises(ZeroDivisionError) as caught:
        list(al.DataLoader(recipe, num_workers=workers))
    notes = "\n".join(caught.value.__notes__)
    assert ("set that in worker_init_fn" in notes) is (workers > 0)


def test_an_error_of_the_librarys_own_says_nothing_of_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{no json\n")
    with pytest.raises(al.FormatError) as caught:
        list(al.DataLoader(al.from_urls(tmp_path / "*.jsonl"), num_workers=1))
    assert "worker_init_fn" not in "\n".join(caught.value.__notes__)


# --- whatever the main module is ---

_SCRIPT = """
import asyncloader as al

print("the main module runs")

class Doubler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, sample):
        return Sample(sample * self.factor)

class Sample:
    def __init__(self, value):
        self.value = value

class Numbers(al.AsyncIterableDataset):
    async def __aiter__(self):
        for number in al.get_topology().split(range(10)):
            yield number

loader = al.DataLoader(
    al.from_iterable(Numbers()).map(Doubler(2)).map(lambda sample: Sample(sample.value + 1)),
    batch_size=5,
    num_workers=2,
    collate_fn=lambda samples: samples,
)
samples = [sample for batch in loader for sample in batch]
assert all(type(sample) is Sample for sample in samples)
print(sorted(sample.value for sample in samples))
"""

_PRINTED = "the main module runs\n[1, 3, 5, 7, 9, 11, 13, 15, 17, 19]\n"


def test_a_script_without_a_main_guard_runs_once_with_lambdas_and_classes_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    with testing.check_leaks():
        run = python(script)
    assert (run.returncode, run.stdout, run.stderr) == (0, _PRINTED, "")


def test_a_program_fed_to_python_by_a_pipe_runs_once_with_lambdas_and_classes_of_its_own() -> None:
    with testing.check_leaks():
        run = python("-", program=_SCRIPT)
    assert (run.returncode, run.stdout, run.stderr) == (0, _PRINTED, "")


def test_a_program_given_by_c_runs_too() -> None:
    run = python("-c", _SCRIPT)
    assert (run.returncode, run.stdout, run.stderr) == (0, _PRINTED, "")


def test_a_module_beside_the_script_is_found_in_the_workers(tmp_path: Path, programs: Programs) -> None:
    (tmp_path / "beside.py").write_text("def double(number):\n    return 2 * number\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import asyncloader as al, beside\n"
        "recipe = al.from_iterable(lambda t: t.split(range(4))).map(beside.double)\n"
        "print([int(number) for number in al.DataLoader(recipe, None, num_workers=2)])\n"
    )
    run = programs.run(script)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[0, 2, 4, 6]\n", "")


def test_a_recipe_that_cannot_be_pickled_gives_one_clear_error_and_starts_nothing(
    make_corpus: Callable[..., Corpus],
) -> None:
    lock = threading.Lock()

    def locked(sample: Any) -> Any:
        with lock:
            return sample

    with testing.check_leaks():
        loader = al.DataLoader(recipe_of(make_corpus("jsonl")).map(locked), 4, num_workers=2)
        with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as caught:
            iter(loader)
        assert any("to send it to their processes" in note for note in caught.value.__notes__)
        assert any("it holds lock, a _thread.lock, which" in note for note in caught.value.__notes__)
        caught.value.__traceback__ = None
    assert len(list(al.DataLoader(recipe_of(make_corpus("jsonl")).map(locked), 4))) == 8


class _Client:
    def __init__(self) -> None:
        self.pool = {"first": threading.Lock()}

    def __call__(self, sample: Any) -> Any:
        return sample


def test_what_cannot_be_pickled_is_named_by_its_path() -> None:
    client = _Client()
    for fn, path in (
        (lambda sample: client(sample), "client.pool['first']"),
        (client, "pool['first']"),
        (partial(lambda sample, key: sample, key=client), "key.pool['first']"),
    ):
        with pytest.raises(TypeError) as caught:
            iter(al.DataLoader(al.from_iterable([0]).map(fn), num_workers=1))
        assert f"it holds {path}, a _thread.lock" in "\n".join(caught.value.__notes__)


def test_an_open_file_is_refused_and_not_sent_as_its_text(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    with open(tmp_path / "words.txt") as words:
        loader = al.DataLoader(al.from_iterable([0]).map(lambda _: words.readline()), num_workers=1)
        with pytest.raises(TypeError, match=r"cannot pickle an open file, '.*words\.txt'") as caught:
            iter(loader)
    assert "it holds words, a _io.TextIOWrapper" in "\n".join(caught.value.__notes__)


def test_arguments_environment_and_folder_are_the_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: int) -> dict[str, str]:
        return {"folder": os.getcwd(), "variable": os.environ["OF_THE_PARENT"]}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_PARENT", "set after the fork server had started")
    recipe = al.from_iterable(lambda topology: topology.split(range(2))).map(tell)
    told = list(al.DataLoader(recipe, None, num_workers=2))
    assert told == [{"folder": str(tmp_path), "variable": "set after the fork server had started"}] * 2


def test_batches_that_are_kept_stay_as_they_were() -> None:
    recipe = al.from_iterable(lambda t: t.split(range(40))).map(lambda n: torch.full((50_000,), n))
    batches = list(al.DataLoader(recipe, 2, num_workers=2, lanes=2))
    assert [int(batch[0, 0]) for batch in batches] == [n for k in range(0, 40, 4) for n in (k, k + 1)]
    assert all(bool((batch == batch[:, :1]).all()) for batch in batches)
