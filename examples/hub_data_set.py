"""A data set of the Hugging Face Hub by its name; a server of this machine plays the Hub.

The Hub keeps a conversion to Parquet of most data sets, in folders by configuration and split.
"""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

import asyncloader as al
from asyncloader import testing

BRANCH = "refs/convert/parquet"


def shard(first: int, rows: int) -> bytes:
    table = pa.table(
        {"id": range(first, first + rows), "tokens": [[n % 1000] * (1 + n % 60) for n in range(rows)]}
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def hub() -> dict[str, bytes]:
    """What the Hub's server has: the files, and a listing of them."""
    contents = {f"en/train/{number:04d}.parquet": shard(number * 900, 900) for number in range(3)}
    contents |= {"en/test/0000.parquet": shard(0, 100), "de/train/0000.parquet": shard(0, 200)}
    listing = [{"type": "file", "path": path, "size": len(content)} for path, content in contents.items()]
    files = {f"datasets/me/texts/resolve/{BRANCH}/{path}": content for path, content in contents.items()}
    return files | {f"api/datasets/me/texts/tree/{BRANCH}": json.dumps(listing).encode()}


def main(server: testing.Server) -> None:
    options = {"endpoint": server.url}  # the Hub itself, if it is not said

    dataset = al.from_hub(
        "me/texts",
        split="train",
        config="en",
        columns=["id", "tokens"],
        counts=True,
        storage_options=options,
    )
    loader = al.DataLoader(dataset.shuffle(1_000), batch_size=64, collate_fn=al.Pad({"tokens": 0}))
    documents = sum(len(batch["id"]) for batch in loader)
    print(f"{len(loader)} batches, {documents} documents")

    try:
        al.from_hub("me/texts", split="trian", config="en", storage_options=options)
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    with testing.serve(hub()) as server:
        main(server)
