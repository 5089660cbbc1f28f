"""Stream shards over HTTP in async code, and ask a web service about each sample on the way.

A map with a coroutine function runs up to `concurrency` calls at a time, in order of the samples, and
goes on while the consumer computes. Its session lives on the loader's loop, not on the one that called
us: `context` opens one there, and closes it when the pass ends. The service here takes 50 ms an answer, so
that 200 questions one after another would take 10 s.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

import asyncloader as al
from asyncloader import testing

SAMPLES = 200
ANSWER_S = 0.05


def write_corpus(folder: Path) -> None:
    with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=50) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "word": f"word-{number}"})


async def stream(corpus: str, service: str) -> tuple[list[int], list[str]]:
    async def ask(sample: dict[str, Any], session: aiohttp.ClientSession) -> dict[str, Any]:
        async with session.get(f"{service}/{sample['word']}") as response:
            return {**sample, "answer": await response.text()}

    dataset = al.from_urls(f"{corpus}/train-{{00..03}}.jsonl").map(
        ask, concurrency=32, context=aiohttp.ClientSession
    )
    numbers: list[int] = []
    answers: list[str] = []
    async with al.DataLoader(dataset, batch_size=16) as loader:
        async for batch in loader:
            numbers += batch["number"].tolist()
            answers += batch["answer"]
            await asyncio.sleep(0)  # whatever else this program does
    return numbers, answers


with tempfile.TemporaryDirectory() as folder:
    write_corpus(Path(folder))
    answers = {f"word-{number}": f"answer {number}".encode() for number in range(SAMPLES)}
    with testing.serve(folder) as corpus, testing.serve(answers, latency_s=ANSWER_S) as service:
        began_s = time.perf_counter()
        numbers, found = asyncio.run(stream(corpus.url, service.url))
        elapsed_s = time.perf_counter() - began_s

assert numbers == list(range(SAMPLES)), "samples come in order"
assert found == [f"answer {number}" for number in range(SAMPLES)]
print(f"{len(found)} answers of {ANSWER_S * 1000:.0f} ms each in {elapsed_s:.1f} s, in order")
