"""The first lines of the README. A test runs them with shards of its own in place of the bucket's."""

import asyncloader as al

dataset = (
    al.from_urls("s3://corpus/train-{00000..01023}.tar")  # http(s)://, gs://, az://, hf://, paths, globs
    .shuffle(10_000, seed=0)
    .map(lambda sample: {"tokens": sample["txt"]})  # def, lambda or async def
)
loader = al.DataLoader(dataset, batch_size=64, num_workers=4, collate_fn=al.Pad({"tokens": 0}))

for batch in loader:  # in async code: async for
    print(batch["tokens"].shape, batch["tokens_lengths"].sum())
checkpoint = {"loader": loader.state_dict()}
