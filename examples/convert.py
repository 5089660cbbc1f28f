"""Make shards of files, convert tables to JSON Lines, and go on with a run that was ended half-way."""

import csv
import tempfile
from pathlib import Path

import asyncloader as al


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    for number in range(40):
        kind = "cat" if number % 2 else "dog"
        (folder / "pictures" / kind).mkdir(parents=True, exist_ok=True)
        (folder / "pictures" / kind / f"{number:03d}.jpg").write_bytes(bytes([number]) * 2000)
        (folder / "pictures" / kind / f"{number:03d}.txt").write_text(f"picture {number} of a {kind}")
    with open(folder / "people.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name", "height"])
        writer.writerows([number, f"person {number}", 1.5 + number / 1000] for number in range(300))

    packed = al.convert(folder / "pictures", folder / "packed", shard_size="20kB", labels=True)
    print(packed.samples, "samples in", packed.shards, "shards")
    sample = al.from_urls(f"{folder}/packed/").decode({"jpg": len}).head(1)[0]
    print(sample["__key__"], sample["jpg"], sample["txt"], sample["cls"], sample["label.txt"])

    types = {"id": "int", "height": "float"}
    tables = al.convert(
        folder / "people.csv", folder / "tables", to="parquet", types=types, samples_per_shard=100
    )
    lines = al.convert(f"{folder}/tables/", folder / "lines", to="jsonl.zst", columns=["id", "height"])
    print(tables.shards, lines.samples, al.from_urls(f"{folder}/lines/").head(2))

    # As if the run had been killed when two shards were left.
    for number in (1, 2):
        (folder / f"tables/shard-{number:05d}.parquet").unlink()
    again = al.convert(
        folder / "people.csv", folder / "tables", to="parquet", types=types, samples_per_shard=100
    )
    print("made again:", again.made, "of", again.shards)


if __name__ == "__main__":
    main()
