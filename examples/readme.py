"""The first lines of the README. A test runs them with shards of its own in place of the bucket's."""

import numpy as np

import asyncloader as al


def decode(sample):
    return {"tokens": np.frombuffer(sample["txt"], np.uint8)}


dataset = (
    al.from_urls("s3://corpus/train-{00000..01023}.tar")  # http(s)://, gs://, az://, hf://, paths, globs
    .shuffle(10_000, seed=0)
    .map(decode, concurrency=16)  # def or async def
)
pad = al.Pad({"tokens": 0})
loader = al.DataLoader(dataset, batch_size=64, num_workers=4, collate_fn=pad, pin_memory=True)

for batch in loader:  # in async code: async for
    print(batch["tokens"].shape, batch["tokens_lengths"].sum())
checkpoint = {"loader": loader.state_dict()}
