"""Stop in the middle of an epoch of a map-style dataset, and of a torch IterableDataset, and go on."""

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

import asyncloader as al

# A map-style dataset, shuffled: nothing that was delivered is fetched again.
torch.manual_seed(0)
loader = al.DataLoader(range(1000), batch_size=10, shuffle=True, num_workers=2)
before = []
for batch in loader:
    before += batch.tolist()
    if len(before) == 600:
        break
checkpoint = json.dumps(loader.state_dict())
next_epoch = [batch.tolist() for batch in loader]

resumed = al.DataLoader(range(1000), batch_size=10, shuffle=True)  # any number of workers
resumed.load_state_dict(json.loads(checkpoint))
after = [index for batch in resumed for index in batch.tolist()]
assert sorted(before + after) == list(range(1000))
assert [batch.tolist() for batch in resumed] == next_epoch
print(f"map style: {len(before)} samples before, {len(after)} after, each once; the next epoch is the same")


class Numbers(IterableDataset[int]):
    """Says where it is, in each worker, and is told."""

    done = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        part = range(worker, 1000, workers)
        while self.done < len(part):
            self.done += 1
            yield part[self.done - 1]
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


iterable = al.DataLoader(Numbers(), batch_size=10, num_workers=2)
before = []
for batch in iterable:
    before += batch.tolist()
    if len(before) == 600:
        break
state = iterable.state_dict()

resumed = al.DataLoader(Numbers(), batch_size=10, num_workers=2)  # as many workers
resumed.load_state_dict(state)
after = [number for batch in resumed for number in batch.tolist()]
assert sorted(before + after) == list(range(1000))
print(f"iterable: {len(before)} samples before, {len(after)} after, each once")

try:
    al.DataLoader(Numbers(), batch_size=10, num_workers=1).load_state_dict(state)
except ValueError as error:
    print(error)
