"""Work through a corpus with MPI's launcher: each sample is done by one of the processes.

    python examples/mpi.py --folder /scratch/corpus --prepare
    mpirun -n 4 python examples/mpi.py --folder /scratch/corpus
    asyncloader audit /scratch/corpus/audit

There is no process group, and the processes never talk to each other: the launcher tells each its number.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import asyncloader as al

SAMPLES = 400


def write_corpus(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with al.ShardWriter(folder / "texts-{}.jsonl", samples_per_shard=40) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "text": "word " * (number % 7 + 1)})


def count_words(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "words": len(sample["text"].split())}


def work(folder: Path) -> None:
    dataset = al.from_urls(str(folder / "texts-{0..9}.jsonl")).map(count_words)
    loader = al.DataLoader(dataset, batch_size=16, audit=folder / "audit")
    print(loader, flush=True)  # ... rank 1 of 4 (OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI))
    counted = 0
    with open(folder / f"words-{os.uname().nodename}-{os.getpid()}.jsonl", "w") as file:
        for batch in loader:
            for number, words in zip(batch["number"].tolist(), batch["words"].tolist(), strict=True):
                file.write(json.dumps({"number": number, "words": words}) + "\n")
                counted += 1
    print(f"counted {counted} texts", flush=True)


parser = argparse.ArgumentParser(description="Count the words of texts on all processes of MPI.")
parser.add_argument("--folder", type=Path, required=True, help="which all nodes see")
parser.add_argument("--prepare", action="store_true", help="write the texts")
arguments = parser.parse_args()
if arguments.prepare:
    write_corpus(arguments.folder)
else:
    work(arguments.folder)
