"""Sources of your own: a class with `async def __aiter__`, and functions that make iterables."""

import asyncio

import asyncloader as al


class Ticks(al.AsyncIterableDataset):
    """What a queue, a socket or a database cursor might give."""

    def __init__(self, count):
        self.count = count

    async def __aiter__(self):
        topology = al.get_topology()  # which part is ours
        for number in topology.split(range(self.count)):
            await asyncio.sleep(0.001)
            yield {"number": number, "lane": topology.lane}


numbers = []
for batch in al.DataLoader(Ticks(100), batch_size=10, num_workers=2):
    numbers += batch["number"].tolist()
print("a class:", sorted(numbers) == list(range(100)))


def count_up(topology):
    return ({"number": number} for number in topology.split(range(100)))


dataset = al.from_iterable(count_up).shuffle(20, seed=0).map(lambda sample: sample | {"half": 0.5})
numbers = []
for batch in al.DataLoader(dataset, batch_size=10, num_workers=2):
    numbers += batch["number"].tolist()
print("a function:", sorted(numbers) == list(range(100)))


class Careless(al.AsyncIterableDataset):
    async def __aiter__(self):
        for number in range(100):
            yield {"number": number}


try:
    list(al.DataLoader(Careless(), lanes=2))
except RuntimeError as error:
    print("refused:", error)
