"""What comes over the roads is what torch would bring; a killed worker is seen at once; nothing grows."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import textwrap
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from programs import Programs
from torch.utils.data import IterableDataset
from torch.utils.data._utils.collate import default_collate_fn_map
from waiting import until

import asyncloader as al
from asyncloader import testing

TORCH = torch.utils.data.DataLoader

# torch looks for dead workers every five seconds.
_AT_ONCE_S = 2.5

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    tensor: torch.Tensor
    name: str


def whole(samples: Any) -> Any:
    return samples


def large() -> torch.Tensor:
    return torch.arange(20_000, dtype=torch.float32)


#: Made anew in each worker: what a dataset may give.
VALUES: list[Any] = [
    lambda: torch.arange(3),
    large,
    lambda: large().reshape(100, 200).T,
    lambda: large().reshape(2, 50, 2, 100)[:, ::2],
    lambda: torch.ones(1).expand(40_000),
    lambda: large().bfloat16(),
    lambda: large().half(),
    lambda: large() > 5,
    lambda: torch.complex(large(), large()),
    lambda: torch.zeros(0, 3),
    lambda: torch.tensor(2.5),
    lambda: torch.zeros(2, 0, 40_000, dtype=torch.int32),
    lambda: torch.rand(4, 3, 40, 50).to(memory_format=torch.channels_last) * 0 + 1,
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.eye(3).to_sparse_csr(),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
    lambda: torch.nested.nested_tensor([torch.ones(2), large()], layout=torch.jagged),
    lambda: torch.ones(3, requires_grad=True),
    lambda: torch.nn.Parameter(large()),
    lambda: large().share_memory_(),
    lambda: np.arange(3),
    lambda: np.arange(60_000).reshape(200, 300).T,
    lambda: np.array(["a", "bcd"]),
    lambda: np.array([(1, 2.5)], dtype=[("x", "i4"), ("y", "f8")]),
    lambda: np.float32(2.5),
    lambda: {"a": [1, (2.5, None)], "b": b"x" * 100_000, "c": "text"},
    lambda: OrderedDict(x=large(), y=Pair(torch.ones(2), "right")),
    lambda: Record(large(), "a record"),
    lambda: [large(), [large(), {"deep": large()}]],
    lambda: None,
]


class Values:
    def __len__(self) -> int:
        return len(VALUES)

    def __getitem__(self, index: int) -> Any:
        return VALUES[index]()


def assert_same(ours: Any, torchs: Any) -> None:
    assert type(ours) is type(torchs)
    if isinstance(ours, torch.Tensor) and ours.is_nested:
        assert (torchs.is_nested, ours.layout) == (True, torchs.layout)
        assert_same(list(ours.unbind()), list(torchs.unbind()))
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (torchs.dtype, torchs.shape, torchs.layout)
        assert (ours.requires_grad, ours.is_leaf) == (torchs.requires_grad, torchs.is_leaf)
        torch.testing.assert_close(dense(ours), dense(torchs), rtol=0, atol=0, equal_nan=True)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == torchs.dtype and ours.flags.writeable == torchs.flags.writeable
        assert np.array_equal(ours, torchs)
    elif isinstance(ours, dict):
        assert list(ours) == list(torchs)
        for name in ours:
            assert_same(ours[name], torchs[name])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(torchs)
        for one, other in zip(ours, torchs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, Record):
        assert_same(vars(ours), vars(torchs))
    else:
        assert ours == torchs


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_values_of_all_kinds_come_as_torch_brings_them(method: str) -> None:
    options: dict[str, Any] = {"num_workers": 2, "collate_fn": whole}
    ours = al.DataLoader(Values(), None, multiprocessing_context=method, **options)
    for got, torchs in zip(ours, TORCH(Values(), None, **options), strict=True):
        assert_same(got, torchs)


BATCHES: list[list[Any]] = [
    [large(), large() + 1],
    [large().bfloat16()] * 3,
    [large().reshape(100, 200).T] * 2,
    [torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)],
    [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    [torch.ones(2, dtype=torch.float64), torch.ones(2)],
    [torch.ones(2), torch.ones(3)],
    [torch.zeros(0, 3), torch.zeros(0, 3)],
    [torch.tensor(1.5), torch.tensor(2.5)],
    [torch.ones(2, requires_grad=True)] * 2,
    [torch.nn.Parameter(torch.ones(2))] * 2,
    [torch.eye(2).to_sparse()] * 2,
    [np.zeros((100, 200), np.float32)] * 2,
    [np.zeros(2, np.float32), np.zeros(2)],
    [np.array(["a"])] * 2,
    [np.float64(2), np.float32(3)],
    [1, 2, -3],
    [True, False],
    [True, 2],
    [1, True],
    [1, 2.5],
    [1.5, 2],
    [1.5, True],
    [1.0, np.float32(2.5)],
    [1, np.int32(2)],
    [1, np.uint64(2)],
    [2**62, -(2**62)],
    [2**63, 1],
    [2**70],
    [float("nan"), float("inf")],
    [1, None],
    [1, "a"],
    [1.5, "a"],
    [1, [2]],
    [1, torch.tensor(2)],
    [1.5, torch.tensor(2.5)],
    [1.5, torch.tensor(2.5, requires_grad=True)],
    [1.5, 2j],
    [{"a": 1, "b": (2.5, "x")}, {"a": 3, "b": (4.5, "y")}],
    [b"a", b"b"],
]


class Outcomes:
    """What torch's ``default_collate`` makes of each in this process."""

    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        try:
            return torch.utils.data.default_collate(BATCHES[index])
        except Exception as error:
            return type(error).__name__, str(error)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torchs_collation_gives_in_a_worker_what_torchs_worker_gives() -> None:
    ours = al.DataLoader(Outcomes(), None, num_workers=1, collate_fn=whole)
    torchs = TORCH(Outcomes(), None, num_workers=1, collate_fn=whole)
    for got, expected in zip(ours, torchs, strict=True):
        assert_same(got, expected)


def count_them(numbers: Any, *, collate_fn_map: Any = None) -> Any:
    return len(numbers)


def test_a_users_rules_of_collation_stay_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (int, torch.Tensor):
        monkeypatch.setitem(default_collate_fn_map, kind, count_them)
    loader = al.DataLoader(Images(8), 4, num_workers=1, multiprocessing_context="fork")
    assert list(loader) == [[4, 4]] * 2


class Conjugates:
    """torch's transport brings them without their sign, and its collation in a worker refuses them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.complex(large(), large()).conj()


@pytest.mark.parametrize("batch_size", [None, 2])
def test_conjugates_come_as_what_they_are(batch_size: int | None) -> None:
    first, *_ = al.DataLoader(Conjugates(), batch_size, num_workers=1)
    expected = Conjugates()[0].resolve_conj()
    assert torch.equal(first if batch_size is None else first[1], expected)


class Writes:
    """Gives tensors in shared memory, and goes on writing to them."""

    def __init__(self) -> None:
        self.shared = torch.zeros(2).share_memory_()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        self.shared += 1
        return self.shared


def test_a_users_shared_tensor_stays_shared() -> None:
    dataset = Writes()
    first, *_ = al.DataLoader(dataset, None, num_workers=1)
    assert first.tolist() == dataset.shared.tolist() == [3, 3]


# --- memory ---


class Images:
    """Large enough to lie in slots: each is its index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 100, 100), index % 251, dtype=torch.uint8), index


def slots() -> list[str]:
    maps = Path("/proc/self/maps").read_text()
    return re.findall(r"memfd:asyncloader-slot", maps)


def test_no_new_memory_and_no_descriptor_after_the_first_batches() -> None:
    before = len(slots())
    batches = iter(al.DataLoader(Images(4 * 200), 4, num_workers=2))
    mapped, opened = [], []
    for number, (images, indices) in enumerate(batches):
        assert images[:, 0, 0, 0].tolist() == [int(index) % 251 for index in indices]
        if number in (40, 180):
            mapped.append(len(slots()) - before)
            opened.append(len(os.listdir("/proc/self/fd")))
    assert mapped[1] <= mapped[0] <= 2 * 5
    assert opened[1] <= opened[0]


def test_kept_batches_stay_as_they_are_and_their_memory_is_given_back() -> None:
    with testing.check_leaks(within_s=5):
        kept = [images for images, _ in al.DataLoader(Images(4 * 60), 4, num_workers=2)]
        assert [int(images[1, 0, 0, 0]) for images in kept] == [(4 * n + 1) % 251 for n in range(60)]
        del kept
    assert not slots()


class Reused:
    """Writes each item over the one before, which its worker goes on holding."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(100_000)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        self.buffer.fill_(index)
        return self.buffer


class Keeps:
    """A ``collate_fn`` that writes each batch over the one before."""

    def __init__(self) -> None:
        self.batch: Any = None

    def __call__(self, samples: list[torch.Tensor]) -> Any:
        if self.batch is None:
            self.batch = torch.utils.data.default_collate(samples)
        else:
            self.batch.copy_(torch.stack(samples))
        return self.batch


def test_what_a_worker_writes_over_is_not_what_the_consumer_has() -> None:
    whole_items = list(al.DataLoader(Reused(), None, num_workers=1, prefetch_factor=4))
    assert [item.unique().tolist() for item in whole_items] == [[n] for n in range(12)]
    batches = list(al.DataLoader(Reused(), 1, num_workers=1, collate_fn=Keeps(), prefetch_factor=4))
    assert [batch.unique().tolist() for batch in batches] == [[n] for n in range(12)]


def test_many_large_tasks_and_results_ahead_wait_for_nobody() -> None:
    indices = [list(range(n, n + 700)) for n in range(900)]
    loader = al.DataLoader(
        range(2_000), batch_sampler=indices, num_workers=1, prefetch_factor=400, persistent_workers=True
    )
    for _ in range(2):
        assert [int(batch[0]) for batch in loader] == list(range(900))
    for _ in loader:  # left while much is on its way, and begun anew
        break
    assert [len(batch) for batch in loader] == [700] * 900


# --- the end of a worker ---


class Killed:
    """Its second item never comes."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            signal.pause()
        return index, os.getpid(), torch.zeros(50_000)


@pytest.mark.parametrize(
    "method",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("timeout", [0, 60])
def test_a_killed_worker_is_seen_at_once(method: str, timeout: float) -> None:
    found: list[Any] = []

    def consume() -> None:  # in a thread, where no signal tells torch of it
        batches = iter(
            al.DataLoader(Killed(), None, num_workers=2, multiprocessing_context=method, timeout=timeout)
        )
        next(batches)
        pid = batches._workers[1].pid
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        try:
            next(batches)
        except RuntimeError as error:
            told = (
                f"DataLoader worker (pid(s) {pid}) exited unexpectedly: worker 1 was killed by signal SIGKILL"
            )
            found.extend((str(error)[: len(told)], told))
        found.append(time.monotonic() - began)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    assert found[0] == found[1]
    assert found[2] < _AT_ONCE_S


def test_several_workers_that_are_killed_together_are_all_named() -> None:
    found: list[Any] = []

    def consume() -> None:
        batches = iter(al.DataLoader(Killed(), None, sampler=[1, 1], num_workers=2))
        pids = [worker.pid for worker in batches._workers]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for worker in batches._workers:
            worker.join()
        try:
            next(batches)
        except RuntimeError as error:
            told = (
                f"DataLoader worker (pid(s) {pids[0]}, {pids[1]}) exited unexpectedly: worker 0 was killed by"
            )
            found.append(str(error).startswith(told) and str(error).count("SIGKILL") == 2)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    assert found == [True]


class Dies(Killed):
    def __getitem__(self, index: int) -> Any:
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_the_signal_that_killed_a_worker_is_named_whoever_sees_it_first() -> None:
    # torch's handler of SIGCHLD, which runs in the main thread, or its loop.
    for _ in range(6):
        with pytest.raises(RuntimeError, match=r"killed by signal(: Killed| SIGKILL)"):
            list(al.DataLoader(Dies(), None, sampler=range(8), num_workers=2))


class Exits(Killed):
    def __getitem__(self, index: int) -> Any:
        if index == 4:
            os._exit(3)
        return index, torch.full((50_000,), index)


def test_what_a_worker_sent_before_its_end_is_delivered() -> None:
    found: list[Any] = []

    def consume() -> None:
        batches = iter(al.DataLoader(Exits(), None, num_workers=1, prefetch_factor=8))
        until(lambda: not batches._workers[0].is_alive())
        try:
            for index, numbers in batches:
                assert numbers.unique().tolist() == [index]
                found.append(index)
        except RuntimeError as error:
            found.append("exited unexpectedly: worker 0 ended with exit status 3" in str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    assert found == [0, 1, 2, 3, True]


class Uneven(IterableDataset[Any]):
    """Its workers end one after the other, and have been told to."""

    def __iter__(self) -> Iterator[Any]:
        info = al.get_worker_info()
        assert info is not None
        for number in range(3 + 9 * info.id):
            yield info.id, number, torch.full((40_000,), number)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_was_told_to_end_is_no_accident(persistent: bool) -> None:
    loader = al.DataLoader(Uneven(), None, num_workers=3, persistent_workers=persistent)
    for _ in range(2):
        found = [(worker, number) for worker, number, _ in loader]
        assert sorted(found) == [(worker, number) for worker in range(3) for number in range(3 + 9 * worker)]


def test_a_worker_ends_at_once_with_its_killed_consumer(tmp_path: Path, programs: Programs) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, signal
        import asyncloader as al

        loader = al.DataLoader(range(100), num_workers=2, multiprocessing_context="fork")
        batches = iter(loader)
        next(batches)
        print(json.dumps([worker.pid for worker in batches._workers]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    done = programs.run(script, timeout=60, strict=False)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    for pid in json.loads(done.stdout):
        until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
    assert time.monotonic() - ended < _AT_ONCE_S


# --- pinning ---


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was one, as far as pinning goes."""
    if torch.accelerator.is_available():
        return
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("persistent", [False, True])
def test_pinned_batches_are_the_same_and_leave_nothing(persistent: bool) -> None:
    list(al.DataLoader(range(2), num_workers=1))
    with testing.check_leaks(within_s=5):
        loader = al.DataLoader(Images(40), 4, num_workers=2, pin_memory=True, persistent_workers=persistent)
        for _ in range(2):
            found = [int(index) for _, indices in loader for index in indices]
            assert found == list(range(40))
        for _ in loader:
            break
        del loader, _
        gc.collect()


@pytest.mark.usefixtures("accelerator")
def test_a_killed_worker_is_seen_at_once_through_the_thread_that_pins() -> None:
    found: list[Any] = []

    def consume() -> None:
        batches = iter(al.DataLoader(Killed(), None, num_workers=2, pin_memory=True))
        next(batches)
        pid = batches._workers[1].pid
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        try:
            while True:
                next(batches)
        except RuntimeError as error:
            told = (
                f"DataLoader worker (pid(s) {pid}) exited unexpectedly: worker 1 was killed by signal SIGKILL"
            )
            found.append(str(error).startswith(told))
        found.append(time.monotonic() - began)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    assert found[0]
    assert found[1] < _AT_ONCE_S
