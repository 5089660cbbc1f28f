"""A dataset of Hugging Face's `datasets` as the source of a stream, split by the lanes."""

import datasets

import asyncloader as al


def read(shards):
    for shard in shards:
        yield from ({"number": 10 * shard + n} for n in range(10))


articles = datasets.IterableDataset.from_generator(read, gen_kwargs={"shards": list(range(10))})


def part(topology):
    shuffled = articles.shuffle(seed=0)
    shuffled.set_epoch(topology.epoch)
    return shuffled.shard(num_shards=topology.lanes, index=topology.lane)


loader = al.DataLoader(al.from_iterable(part), batch_size=8, num_workers=2)
numbers = [number for batch in loader for number in batch["number"].tolist()]
print("each once:", sorted(numbers) == list(range(100)))
