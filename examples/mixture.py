"""Three corpora of different formats and sizes, mixed by weights that change as the training goes on.

It shows what the weights come to, in the first thousand samples of each epoch, and that a run which is broken
off in the middle goes on with the very batches that were left.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncloader as al
from asyncloader.plan.topology import Topology


def write_corpora(folder: Path) -> None:
    """A large corpus as tar, a small one as JSON Lines."""
    with al.ShardWriter(folder / "web-{:02d}.tar", samples_per_shard=500) as web:
        for number in range(4000):
            web.write({"__key__": f"web-{number}", "txt": f"page {number}"})
    with al.ShardWriter(folder / "books-{:02d}.jsonl", samples_per_shard=100) as books:
        for number in range(400):
            books.write({"text": f"chapter {number}", "title": f"book {number // 20}"})


def chats(topology: Topology) -> Iterator[dict[str, Any]]:
    """A source of your own."""
    return ({"text": f"message {number}"} for number in topology.split(range(300)))


def text_of(sample: dict[str, Any]) -> dict[str, str]:
    return {"text": sample["txt"]}


with tempfile.TemporaryDirectory() as folder:
    write_corpora(Path(folder))
    web = al.from_urls(f"{folder}/web-*.tar").decode().map(text_of).shuffle(200, seed=0)
    books = al.from_urls(f"{folder}/books-*.jsonl").select_columns("text").shuffle(200, seed=0)

    dataset = al.mix(
        {"web": web, "books": books, "chats": al.from_iterable(chats)},
        weights={
            0: {"web": 0.8, "books": 0.15, "chats": 0.05},
            2: {"web": 0.4, "books": 0.3, "chats": 0.3},  # from epoch 2 on
        },
        stop="repeat",
    )
    loader = al.DataLoader(dataset.take(1000), batch_size=50, num_workers=2)
    for epoch in range(3):
        for _batch in loader:
            pass
        print(f"epoch {epoch}:", loader.statistics.components)

    every = al.mix({"web": web, "books": books}, weights={"web": 3, "books": 1}, stop="all")
    whole = [batch["text"] for batch in al.DataLoader(every, batch_size=50, num_workers=2)]
    print(f"stop='all': {sum(map(len, whole))} samples, each once")

    first = al.DataLoader(every, batch_size=50, num_workers=2)
    batches = iter(first)
    before = [next(batches)["text"] for _ in range(30)]
    saved = json.dumps(first.state_dict())
    first.close()

    second = al.DataLoader(every, batch_size=50)
    second.load_state_dict(json.loads(saved))
    after = [batch["text"] for batch in second]
    print(f"resumed after {len(before)} batches: the same as without a stop: {before + after == whole}")
