"""Parquet of the Hugging Face Hub, read column by column; a server of this machine plays the Hub.

Only the wanted columns are requested, and of these only the row groups that may have wanted rows.
"""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

import asyncloader as al
from asyncloader import testing

ROWS, SHARDS = 2_000, 4
REPOSITORY = "me/texts"


def shard(number: int) -> bytes:
    """Documents of growing age, their tokens, and what a language model has no use for."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    table = pa.table(
        {
            "id": ids,
            "year": [1990 + n * 40 // (ROWS * SHARDS) for n in ids],
            "tokens": [[n % 1000] * (1 + n % 60) for n in ids],
            "html": [f"<p>{n}</p>" * 40 for n in ids],
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=500, compression="none", use_dictionary=False)
    return out.getvalue()


def hub() -> dict[str, bytes]:
    """What the Hub's server has: the files, and a listing of them."""
    contents = {f"train/{number:02d}.parquet": shard(number) for number in range(SHARDS)}
    listing = [{"type": "file", "path": path, "size": len(content)} for path, content in contents.items()]
    files = {f"datasets/{REPOSITORY}/resolve/main/{path}": content for path, content in contents.items()}
    return files | {f"api/datasets/{REPOSITORY}/tree/main/train": json.dumps(listing).encode()}


def main(server: testing.Server) -> None:
    options = {"endpoint": server.url}  # the Hub itself, if it is not said

    dataset = al.from_urls(
        "hf://datasets/me/texts/train/*.parquet",
        columns=["id", "tokens"],
        filters=[("year", ">=", 2020)],
        storage_options=options,
    ).shuffle(1_000, seed=0)
    loader = al.DataLoader(dataset, batch_size=64, collate_fn=al.Pad({"tokens": 0}))
    for epoch in range(2):
        documents = sum(len(batch["id"]) for batch in loader)
        print(f"epoch {epoch}: {documents} documents, {loader.statistics.network.requests} requests")


if __name__ == "__main__":
    files = hub()
    with testing.serve(files) as server:
        main(server)
        share = server.counters.bytes_sent / 2 / sum(map(len, files.values()))
        print(f"read {share:.0%} of the bytes in an epoch")
