"""Workers that have not imported torch, as a script with threads has them: the same batches, and sooner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from programs import Programs

import asyncloader as al

#: With another thread the workers do not come from a fork of the script, which has imported torch.
THREADED = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

SCRIPT = """
import json, sys
import numpy as np
import torch
import asyncloader as al

shards = al.from_urls(sys.argv[1] + "/shard-{0..3}.jsonl").shuffle(20, seed=1)

def plain(batch):
    if isinstance(batch, torch.Tensor):
        return [str(batch.dtype), batch.tolist()]
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items() if name != "had_torch"}
    return [plain(value) for value in batch] if isinstance(batch, list) else batch

def tells(sample):
    return {**sample, "had_torch": "torch" in sys.modules}

def of_several_types(sample):
    return {**sample, "n": [float, int][sample["n"] % 2](sample["n"])}

def of_numpy(sample):
    return {**sample, "n": np.float32(sample["n"])}

def array(sample):
    return {"tokens": np.asarray(sample["tokens"])}

def length(sample):
    return len(sample["tokens"])

def users(rows):
    return {"n": al.default_collate([row["n"] for row in rows]) + torch.ones(1)}

few = shards.map(tells).select_columns("n", "had_torch")
pad = al.Pad({"tokens": 0})
CASES = {
    "padded": (shards.map(tells), {"batch_size": 8, "collate_fn": al.Pad({"tokens": 0}, mask=True)}),
    "single": (shards.map(tells), {"batch_size": None, "collate_fn": dict}),
    "by tokens": (
        shards.map(tells),
        {"batching": al.TokenBatches(length=length, max_tokens=40, pool=20), "collate_fn": pad},
    ),
    "packed": (shards.map(array), {"batching": al.Pack("tokens", length=16, pool=10)}),
    "of several types": (few.map(of_several_types), {"batch_size": 8}),
    "scalars of numpy": (few.map(of_numpy), {"batch_size": 8}),
    "a user's collate_fn": (shards, {"batch_size": 8, "collate_fn": users}),
}

def compared(recipe, options):
    had_torch = set()

    def batches(num_workers):
        with al.DataLoader(recipe, lanes=2, num_workers=num_workers, **options) as loader:
            for batch in loader:
                if num_workers and "had_torch" in batch:
                    had_torch.update(np.atleast_1d(batch["had_torch"]).tolist())
                yield plain(batch)

    here, there = list(batches(0)), list(batches(2))
    return len(here), here == there, sorted(had_torch)

print(json.dumps({name: compared(*case) for name, case in CASES.items()}))
"""

# Numbers of several types in a field are for torch: the first batch of each worker imports it. Scalars
# of NumPy, such as what `image.mean()` gives, need none.
HAD_TORCH: dict[str, list[bool]] = {
    "padded": [False],
    "single": [False],
    "by tokens": [False],
    "packed": [],
    "of several types": [False, True],
    "scalars of numpy": [False],
    "a user's collate_fn": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        samples = [
            {
                "n": n,
                "x": n / 7,
                "on": n % 2 == 0,
                "text": str(n),
                "tokens": list(range(n % 5 + 1)),
                "in": {"m": [n]},
            }
            for n in range(shard * 30, shard * 30 + 30)
        ]
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        (folder / f"shard-{shard}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def said_by(folder: Path, programs: Programs, tmp_path: Path) -> Callable[[str], str]:
    """What a script prints that is given the shards' folder."""

    def said_by(text: str) -> str:
        script = tmp_path / "train.py"
        script.write_text(THREADED + text)
        done = programs.run(script, folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return said_by


def test_the_batches_are_those_of_no_workers_and_torch_is_imported_where_it_is_needed(
    said_by: Callable[[str], str],
) -> None:
    found = json.loads(said_by(SCRIPT))
    assert found.keys() == HAD_TORCH.keys()
    assert {name: had_torch for name, (_, _, had_torch) in found.items()} == HAD_TORCH
    assert all(same and count >= 12 for count, same, _ in found.values()), found


def test_torch_that_comes_late_is_seeded_and_knows_the_worker(said_by: Callable[[str], str]) -> None:
    """By a name that nobody could have seen."""
    text = """
import importlib, sys
import torch
import asyncloader as al

def draws(sample):
    late = "torch" not in sys.modules
    it = importlib.import_module("tor" + "ch")
    data = importlib.import_module("tor" + "ch.utils.data")
    info = data.get_worker_info()
    return {"late": late, "draw": it.rand(()).item(), "threads": it.get_num_threads(), "worker": info.id}

recipe = al.from_urls(sys.argv[1] + "/shard-{0..3}.jsonl").map(draws)
def rows():
    torch.manual_seed(3)
    with al.DataLoader(recipe, 30, num_workers=2, collate_fn=list) as loader:
        return [row for rows in loader for row in rows]
first, second = rows(), rows()
assert first == second
assert any(row["late"] for row in first)
assert {row["threads"] for row in first} == {1}
assert {row["worker"] for row in first} == {0, 1}
assert len({row["draw"] for row in first}) == len(first) == 120
print("good")
"""
    assert said_by(text) == "good\n"


def test_here_nothing_stands_for_a_tensor() -> None:
    assert type(al.Pad({"x": 0})([{"x": np.ones(2)}])["x"]).__name__ == "Tensor"


@pytest.mark.parametrize("where", ["sys.argv[1]", "server.url"])
def test_a_worker_has_nothing_left_to_import(where: str, said_by: Callable[[str], str]) -> None:
    """Each worker would take the time anew, while the consumer waits for its first batch."""
    text = """
import sys
import torch
import asyncloader as al
from asyncloader import testing

imported = []

def listen():
    sys.addaudithook(lambda event, args: imported.append(args[0]) if event == "import" else None)
    return tells

def tells(sample):
    ours = [name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names]
    return {**sample, "imported": " ".join(ours)}

class Listens:
    def __call__(self, sample):
        return tells(sample)

    def __reduce__(self):  # unpickled before all else of the worker's job
        return listen, ()

with testing.serve(sys.argv[1]) as server:
    recipe = al.from_urls([WHERE + f"/shard-{n}.jsonl" for n in range(4)]).select_columns("n").map(Listens())
    with al.DataLoader(recipe, 8, num_workers=2) as loader:
        print({each for batch in loader for each in batch["imported"]})
"""
    assert eval(said_by(text.replace("WHERE", where))) == {""}
