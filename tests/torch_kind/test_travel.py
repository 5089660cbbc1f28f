"""What goes to workers and comes back, in scripts as users write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import asyncloader as al
from asyncloader import testing

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(al.__file__).parents[1])}


def run_script(folder: Path, text: str, *arguments: str) -> Any:
    """What a script prints as JSON; it must end by itself and complain of nothing."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# One worker makes an item of each kind; an error is one of them, and iteration goes on after it.
_OF_MAIN = """
    import collections, dataclasses, enum, json, sys, threading
    import torch
    import asyncloader as al

    class Batch:
        made = 0
        def __init__(self, value):
            self.value = value
        def double(self):
            return FACTOR * self.value

    @dataclasses.dataclass
    class Record:
        tensor: torch.Tensor
        name: str

    Pair = collections.namedtuple("Pair", "left right")
    Color = enum.Enum("Color", "RED BLUE")

    class Key:
        def __init__(self, number):
            self.number = number

    class Single(Exception):
        pass

    class Double(Exception):
        def __init__(self, code, text):
            super().__init__(f"{code}: {text}")

    LOCK = threading.Lock()
    FACTOR = 2

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 7
        def __getitem__(self, key):
            assert isinstance(key, Key)
            with LOCK:
                return getattr(self, f"item_{key.number}")()
        def item_0(self): return Batch(4)
        def item_1(self): return Record(torch.arange(3), "three")
        def item_2(self): return Pair(1, Color.BLUE)
        def item_3(self): raise Single("one")
        def item_4(self): raise Double(2, "two")
        def item_5(self): return {"many": [Batch(5), Pair(6, 7)], "kind": Batch}
        def item_6(self): return torch.ones(2)

    def describe(item):
        if isinstance(item, Batch):
            return ["Batch", item.value, item.double(), type(item) is Batch, Batch.made]
        if isinstance(item, Record):
            return ["Record", item.tensor.tolist(), item.name]
        if isinstance(item, Pair):
            return ["Pair", list(map(describe, item))]
        if isinstance(item, Color):
            return ["Color", item.name, item is Color.BLUE]
        if isinstance(item, dict):
            return [[describe(one) for one in item["many"]], item["kind"] is Batch]
        if isinstance(item, torch.Tensor):
            return item.tolist()
        return item

    def unchanged(item):
        return item

    def main(library, method):
        global FACTOR
        FACTOR = 3  # here alone
        Batch.made = 9
        loader_class = al.DataLoader if library == "ours" else torch.utils.data.DataLoader
        collate = (lambda item: item) if library == "ours" else unchanged
        loader = loader_class(
            Items(), None, sampler=[Key(number) for number in range(7)], num_workers=1,
            collate_fn=collate, multiprocessing_context=method,
        )
        batches, found = iter(loader), []
        while True:
            try:
                found.append(describe(next(batches)))
            except StopIteration:
                break
            except Exception as error:
                found.append([type(error).__name__, isinstance(error, Single), "two" in str(error)])
        print(json.dumps(found))

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""

_FOUND = [
    ["Batch", 4, 12, True, 9],
    ["Record", [0, 1, 2], "three"],
    ["Pair", [1, ["Color", "BLUE", True]]],
    ["Single", True, False],
    ["RuntimeError", False, True],
    [[["Batch", 5, 15, True, 9], ["Pair", [6, 7]]], True],
    [1.0, 1.0],
]


# Of torch one start method, as what it gives is no claim about us; of ours one that prepares a main module.
@pytest.mark.parametrize(
    ("library", "method"),
    [
        ("ours", "fork"),
        ("ours", "spawn"),
        pytest.param("ours", "forkserver", marks=pytest.mark.slow),
        ("torch", "spawn"),
        pytest.param("torch", "forkserver", marks=pytest.mark.slow),
        pytest.param("torch", "fork", marks=pytest.mark.slow),
    ],
)
def test_classes_of_a_script_come_back_as_what_they_are(tmp_path: Path, library: str, method: str) -> None:
    assert run_script(tmp_path, _OF_MAIN, library, method) == _FOUND


_BY_VALUE = """
    import json, sys
    import asyncloader as al

    def classes():
        class Local:
            made = 0
            def __init__(self, value):
                self.value = value
        class LocalError(Exception):
            def __init__(self, code, text):
                super().__init__(text)
        return Local, LocalError

    if __name__ == "__main__":
        Local, LocalError = classes()

        class Guarded:
            def __init__(self, value):
                self.value = value

        class Items:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                if index == 1:
                    raise LocalError(1, "of a local class")
                return [Local(index), Guarded(index), lambda: index]

        Local.made = 3
        loader = al.DataLoader(
            Items(), None, num_workers=1, collate_fn=lambda it: it, multiprocessing_context=sys.argv[1]
        )
        batches, found = iter(loader), []
        for _ in range(4):
            try:
                local, guarded, function = next(batches)
            except Exception as error:
                found.append([type(error).__name__, "LocalError: of a local class" in str(error)])
            else:
                same = [type(local) is Local, type(guarded) is Guarded]
                found.append([*same, local.value, function(), Local.made])
                Local.made += 1
        print(json.dumps(found))
"""


# Those of multiprocessing's fork server are prepared as those that it spawns: one of the two each.
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_classes_that_travelled_by_value_come_back_as_what_they_were(tmp_path: Path, method: str) -> None:
    assert run_script(tmp_path, _BY_VALUE, method) == [
        [True, True, 0, 0, 3],
        ["RuntimeError", True],
        [True, True, 2, 2, 4],
        [True, True, 3, 3, 5],
    ]


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_without_a_file_everything_of_main_travels_by_value(method: str) -> None:
    program = textwrap.dedent(f"""
        import asyncloader as al

        class Batch:
            def __init__(self, value):
                self.value = value

        class Items:
            def __len__(self):
                return 2
            def __getitem__(self, index):
                return Batch(index)

        loader = al.DataLoader(
            Items(), None, num_workers=1, collate_fn=lambda it: it, multiprocessing_context={method!r}
        )
        print([type(batch) is Batch and batch.value for batch in loader])
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


def test_a_stream_leaves_the_classes_of_its_batches_as_they_are(tmp_path: Path) -> None:
    found = run_script(
        tmp_path,
        """
        import json
        import asyncloader as al

        class Batch:
            seen = 0
            def __init__(self, samples):
                self.samples = samples

        if __name__ == "__main__":
            dataset = al.from_iterable(lambda topology: topology.split(range(8)))
            found = []
            for batch in al.DataLoader(dataset, 2, num_workers=2, collate_fn=Batch):
                Batch.seen += 1
                found.append([type(batch) is Batch, Batch.seen])
            print(json.dumps(found))
        """,
    )
    assert found == [[True, number] for number in range(1, 5)]


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*pipe:UserWarning")
@pytest.mark.filterwarnings("ignore:(Lambda|Local) function is not supported by pickle:UserWarning")
def test_a_data_pipe_and_the_function_of_its_workers_travel_by_value(
    method: str,
) -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(8)).map(lambda number: 10 * number).sharding_filter()
    loader = al.DataLoader(
        pipe, 2, num_workers=2, multiprocessing_context=method, worker_init_fn=lambda worker: None
    )
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(0, 80, 10))


# --- what cannot travel ---


class LocalItems(IterableDataset[Any]):
    """Yields what only this process knows, at the end too: nothing may overtake the error."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __iter__(self) -> Iterator[Any]:
        yield 0
        yield self.item
        yield 2
        yield self.item


def whole(samples: Any) -> Any:
    return samples


def outcomes(loader: Any) -> list[Any]:
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


@pytest.mark.parametrize("pins", [False, True])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_a_batch_that_does_not_pickle_raises_and_iteration_goes_on(pins: bool) -> None:
    class Local:
        pass

    for item in (Local(), lambda: 0, [torch.ones(3), Local]):
        loader = al.DataLoader(LocalItems(item), None, num_workers=1, collate_fn=whole, pin_memory=pins)
        first, failed, third, last = outcomes(loader)
        assert (first, third) == (0, 2)
        for error in (failed, last):
            assert isinstance(error, Exception) and type(error).__name__ == "PicklingError"
            assert "Caught PicklingError in DataLoader worker process 0" in str(error)
            assert "while pickling a batch of type" in str(error)
            assert "<locals>" in str(error)


def test_an_error_whose_class_does_not_pickle_keeps_its_text_and_traceback() -> None:
    class LocalError(Exception):
        pass

    class Fails:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            if index == 0:
                raise LocalError("nothing there")
            return index

    failed, second = outcomes(al.DataLoader(Fails(), None, num_workers=1))
    assert second == 1
    assert type(failed) is RuntimeError
    assert "LocalError: nothing there" in str(failed) and "in __getitem__" in str(failed)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_index_that_does_not_pickle_raises_at_once(method: str) -> None:
    lock: Any = threading.Lock()
    list(al.DataLoader([1], num_workers=1))  # what multiprocessing starts once in a process's life
    with testing.check_leaks(within_s=5):
        loader = al.DataLoader([1], None, sampler=[lock], num_workers=1, multiprocessing_context=method)
        with pytest.raises(TypeError, match="cannot pickle") as error:
            next(iter(loader))
        assert error.value.__notes__ == ["while pickling what the sampler gave, to send it to a worker"]
        del error, loader


# A spawned worker gets the dataset's class by value, and then pickles otherwise.
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensors_of_a_batch_that_does_not_pickle_leave_no_descriptor_in_the_worker(method: str) -> None:
    class Unsendable:
        def __len__(self) -> int:
            return 31

        def __getitem__(self, index: int) -> Any:
            if index < 30:
                return torch.ones(3), threading.Lock()
            return len(os.listdir("/proc/self/fd"))

    inherited = len(os.listdir("/proc/self/fd"))
    loader = al.DataLoader(Unsendable(), None, num_workers=1, multiprocessing_context=method)
    *errors, opened = outcomes(loader)
    assert len(errors) == 30 and all("cannot pickle" in str(error) for error in errors)
    assert opened < inherited + 30
