"""The frozen cases. Each is made of a folder of shards, and gives what JSON can hold."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpus import fingerprint
from foreign_folders import write_litdata, write_mds

from . import calls as al

__all__ = ["CASES", "write_shards"]

#: Documents of each shard; one is empty.
SIZES = (13, 0, 41, 7, 22, 1, 30, 6)
LANES = 4
STATES_EVERY = 10

Make = Callable[[Path], al.Dataset]


def documents() -> list[list[dict[str, Any]]]:
    drawn = random.Random(5)
    numbers = iter(range(sum(SIZES)))
    return [
        [
            {
                "number": number,
                "tokens": [drawn.randrange(1, 100) for _ in range(drawn.choice((1, 3, 3, 8, 20)))],
                "score": number / 8,
                "text": f"document {number} é",
            }
            for number in islice(numbers, size)
        ]
        for size in SIZES
    ]


# --- shards ---


def write_shards(folder: Path) -> None:
    """The same documents in each format, with an index and without."""
    for suffix, write in FORMATS.items():
        for kind in ("known", "unknown"):
            below = folder / kind / suffix
            below.mkdir(parents=True)
            for number, rows in enumerate(documents()):
                write(below / f"{number}.{suffix}", rows)
            (below / "asyncloader-index.json").unlink(missing_ok=True)
            if kind == "known":
                al.build_index(str(below / f"*.{suffix}"))
    write_mds(folder / "mds", [size for size in SIZES if size])
    write_litdata(folder / "litdata", [size for size in SIZES if size])


def by_writer(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        path.write_bytes(b"")
        return
    with al.ShardWriter(path) as writer:
        for row in rows:
            writer.write(row)


def by_writer_as_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        path.write_bytes(bytes(1024))
        return
    with al.ShardWriter(path) as writer:
        for row in rows:
            writer.write({"__key__": f"{row['number']:04d}", "json": row, "cls": row["number"]})


def by_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["number", "score", "text"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def by_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(f"{row['number']} {row['text']}\n" for row in rows))


SCHEMA = pa.schema(
    {"number": pa.int64(), "tokens": pa.list_(pa.int32()), "score": pa.float64(), "text": pa.string()}
)


def by_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=9)


def by_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=9)


FORMATS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "jsonl": by_writer,
    "tar": by_writer_as_tar,
    "csv": by_csv,
    "txt": by_lines,
    "parquet": by_parquet,
    "arrow": by_arrow,
}


def read(folder: Path, suffix: str, *, known: bool, **options: Any) -> al.Dataset:
    return al.from_urls(str(folder / ("known" if known else "unknown") / suffix / f"*.{suffix}"), **options)


# --- what users do ---


def is_wanted(sample: Mapping[str, Any]) -> bool:
    return bool(sample["number"] % 4 != 1)


def halved(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {**sample, "score": sample["score"] / 2}


def doubled(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {**columns, "number": np.asarray(columns["number"]) * 2}


def are_even(columns: Mapping[str, Any]) -> Any:
    return np.asarray(columns["number"]) % 2 == 0


def as_list(samples: list[Any]) -> list[Any]:
    return samples


OPERATORS: dict[str, Callable[[al.Dataset], al.Dataset]] = {
    "plain": lambda recipe: recipe,
    "shuffle": lambda recipe: recipe.shuffle(16, seed=3),
    "map": lambda recipe: recipe.map(halved),
    "map on threads": lambda recipe: recipe.map(halved, concurrency=3),
    "filter": lambda recipe: recipe.filter(is_wanted),
    "shuffle, filter, map": lambda recipe: recipe.shuffle(9, seed=1).filter(is_wanted).map(halved),
    "map_batches": lambda recipe: recipe.select_columns("number", "score").map_batches(doubled, batch_size=5),
    "filter_batches": lambda recipe: recipe.filter_batches(are_even, batch_size=6),
    "select": lambda recipe: recipe.select_columns("text", "number"),
    "rename": lambda recipe: recipe.rename(score="weight"),
    "take": lambda recipe: recipe.take(50),
    "repeat": lambda recipe: recipe.shuffle(8).repeat(2),
    "take of a shuffle": lambda recipe: recipe.shuffle(30, seed=2).take(33).map(halved),
}

MAKES: dict[str, Make] = {
    **{
        f"{suffix}, {'known' if known else 'unknown'}": partial(read, suffix=suffix, known=known)
        for suffix in FORMATS
        for known in (True, False)
    },
    "tar, decoded": lambda folder: read(folder, "tar", known=True).decode(),
    "parquet, some columns": lambda folder: read(folder, "parquet", known=False, columns=["score", "number"]),
    "parquet, filters": lambda folder: read(folder, "parquet", known=False, filters=[("number", ">", 30)]),
    "mds": lambda folder: al.from_mds(folder / "mds", columns=["id", "text", "tokens"]),
    "litdata": lambda folder: al.from_litdata(folder / "litdata", columns=["id", "text", "tokens"]),
    **{
        f"{suffix}, {name}": lambda folder, suffix=suffix, change=change: change(
            read(folder, suffix, known=True)
        )
        for suffix in ("jsonl", "parquet")
        for name, change in OPERATORS.items()
    },
    "mix": lambda folder: al.mix(
        [read(folder, "jsonl", known=True).shuffle(8), read(folder, "parquet", known=True)],
        weights=[0.7, 0.3],
        seed=4,
    ),
    "mix, all": lambda folder: al.mix(
        {"a": read(folder, "jsonl", known=True), "b": read(folder, "arrow", known=True)},
        weights={"a": 1, "b": 2},
        stop="all",
    ),
    "concat": lambda folder: al.concat(
        [read(folder, "jsonl", known=True), read(folder, "parquet", known=True)]
    ),
    "zip": lambda folder: al.zip_datasets(
        {
            "left": read(folder, "jsonl", known=True),
            "right": read(folder, "parquet", known=True).select_columns("number"),
        }
    ),
    "iterable": lambda folder: al.from_iterable(
        lambda turn: turn.split({"number": number, "half": number / 2} for number in range(101))
    ),
}

PADDED = {"tokens": al.PadField(value=-1, dtype="int32")}
BATCHINGS: dict[str, dict[str, Any]] = {
    "single": {"batch_size": None},
    "dropped last": {"batch_size": 8, "drop_last": True, "collate_fn": as_list},
    "padded": {"batch_size": 8, "collate_fn": al.Pad(PADDED)},
    "padded, masked": {
        "batch_size": 8,
        "collate_fn": al.Pad({"tokens": 0}, side="left", multiple_of=8, mask=True, sort_by="tokens"),
    },
    "truncated": {"batch_size": 8, "collate_fn": al.Pad({"tokens": 0}, max_length=5, overflow="truncate")},
    "buckets": {
        "batching": al.Buckets(bounds=[4, 10], batch_sizes=[8, 4, 2], pool=30),
        "collate_fn": al.Pad(PADDED),
    },
    "tokens": {"batching": al.TokenBatches(max_tokens=40, pool=20), "collate_fn": al.Pad(PADDED)},
    "packed": {"batching": al.Pack("tokens", length=32, batch_size=2)},
}

# --- what is frozen of them ---


def loader_of(recipe: Any, **options: Any) -> al.DataLoader[Any]:
    usual: dict[str, Any] = {} if "batching" in options else {"batch_size": 5, "collate_fn": as_list}
    return al.DataLoader(recipe, **{"lanes": LANES, **usual, **options})


def digest_of(batch: Any) -> str:
    """Of its values, types and shapes; of a path that a sample holds, the file's name alone counts."""
    return sha256(re.sub(r"/[^'\"]*/", "/", repr(fingerprint(batch))).encode()).hexdigest()[:8]


def told(batches: Iterable[Any]) -> str:
    return " ".join(map(digest_of, batches))


def passes(make: Make, folder: Path, **options: Any) -> list[str]:
    """Two epochs, in this process; whether workers give the same is asked of some cases."""
    with loader_of(make(folder), **options) as loader:
        first = told(loader)
        loader.set_epoch(1)
        return [first, told(loader)]


def over_workers(make: Make, folder: Path, **options: Any) -> list[str]:
    return passes(make, folder, num_workers=2, **options)


def over_ranks(make: Make, folder: Path, world_size: int, **options: Any) -> list[str]:
    recipe = make(folder)
    return [
        told(loader_of(recipe, rank=rank, world_size=world_size, uneven="ignore", **options))
        for rank in range(world_size)
    ]


def resumed(make: Make, folder: Path, **options: Any) -> dict[str, str]:
    """What follows at every tenth batch, by one rank and, of its state, by two."""
    recipe = make(folder)
    states = {}
    loader = loader_of(recipe, **options)
    states[0] = json.dumps(loader.state_dict())
    for number, _ in enumerate(loader, 1):
        if number % STATES_EVERY == 0:
            states[number] = json.dumps(loader.state_dict())
    found = {}
    for number, state in states.items():
        for world_size in (1, 2):
            tails = []
            for rank in range(world_size):
                again = loader_of(recipe, rank=rank, world_size=world_size, uneven="ignore", **options)
                again.load_state_dict(json.loads(state))
                tails.append(told(again))
            found[f"after {number}, world of {world_size}"] = " | ".join(tails)
    return found


def merged(make: Make, folder: Path, batches: int, **options: Any) -> str:
    """What follows in one rank after each of four has had so many batches."""
    recipe, states = make(folder), []
    for rank in range(LANES):
        with loader_of(recipe, rank=rank, world_size=LANES, uneven="ignore", **options) as loader:
            for _, _ in zip(range(batches), loader, strict=False):
                pass
            states.append(loader.state_dict())
    again = loader_of(recipe, **options)
    again.load_state_dict(json.loads(json.dumps(al.merge_states(states))))
    return told(again)


def audited(make: Make, folder: Path, scratch: Path, **options: Any) -> dict[str, Any]:
    for rank in range(2):
        loader = loader_of(make(folder), audit=scratch, rank=rank, world_size=2, uneven="ignore", **options)
        for _ in loader:
            pass
    return al.verdict_of(str(scratch))


def unfinished(make: Make, folder: Path, scratch: Path) -> dict[str, Any]:
    """One of two ranks has never come."""
    for _ in loader_of(make(folder), audit=scratch, rank=0, world_size=2, uneven="ignore"):
        pass
    return al.verdict_of(str(scratch))


def error_of(act: Callable[[], object]) -> dict[str, Any]:
    """Type and attributes of what is raised; its wording may change."""
    try:
        act()
    except Exception as error:
        attributes = {
            name: value.rpartition("/")[2] if isinstance(value, str) else value
            for name, value in sorted(vars(error).items())
            if not name.startswith("_") and name != "pid" and isinstance(value, str | int | None)
        }
        return {"type": type(error).__name__, **attributes}
    return {}


def fail(sample: Mapping[str, Any]) -> Any:
    if sample["number"] == 40:
        raise LookupError("forty")
    return sample


def errors(folder: Path, scratch: Path) -> dict[str, Any]:
    def drain(recipe: Any, **options: Any) -> None:
        for _ in loader_of(recipe, **{"lanes": 1, **options}):
            pass

    def of_damaged(suffix: str, name: str, cut: Callable[[bytes], bytes], **options: Any) -> None:
        content = (folder / "unknown" / suffix / f"2.{suffix}").read_bytes()
        (scratch / f"{name}.{suffix}").write_bytes(cut(content))
        drain(al.from_urls(str(scratch / f"{name}.{suffix}")), **options)

    lines = read(folder, "jsonl", known=True)
    acts: dict[str, Callable[[], object]] = {
        "missing shard": lambda: drain(al.from_urls(str(scratch / "none.jsonl"))),
        "unknown format": lambda: al.from_urls(str(scratch / "none.xyz")),
        "no shards": lambda: al.from_urls([]),
        "unknown column": lambda: drain(read(folder, "parquet", known=False, columns=["none"])),
        "lanes and ranks": lambda: drain(lines, lanes=3, rank=0, world_size=2, uneven="ignore"),
        "batch size of 0": lambda: loader_of(lines, batch_size=0),
        "two batchings": lambda: loader_of(lines, batching=al.Pack(), batch_size=3),
        "the users own": lambda: drain(lines.map(fail)),
        "the users own on threads": lambda: drain(lines.map(fail, concurrency=2)),
        "no collation": lambda: drain(lines, collate_fn=None),
        "a state of another recipe": lambda: loader_of(lines.take(3)).load_state_dict(
            loader_of(lines).state_dict()
        ),
        "no state": lambda: loader_of(lines).load_state_dict({"version": 0}),
        "too long": lambda: drain(lines, collate_fn=al.Pad({"tokens": 0}, max_length=2)),
        "budget of skips": lambda: of_damaged(
            "jsonl", "budget", lambda content: content.replace(b"{", b"?"), on_error=al.SkipErrors(max=2)
        ),
        **{
            f"{suffix}, {name}": partial(of_damaged, suffix, name, cut)
            for suffix in FORMATS
            for name, cut in DAMAGE.items()
            if (suffix, name) not in HARMLESS
        },
    }
    return {name: error_of(act) for name, act in acts.items()}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2 - 3],
    "zeros": lambda content: content[: len(content) // 2] + bytes(700) + content[len(content) // 2 + 700 :],
}
#: Text that is cut is text.
HARMLESS = {("txt", "cut"), ("csv", "cut")}


def map_style(folder: Path, **options: Any) -> list[str]:
    import torch

    torch.manual_seed(3)
    items = [{"number": number, "half": number / 2} for number in range(103)]
    loader = al.DataLoader(items, **options)
    return [told(loader), told(loader)]


@dataclass(frozen=True)
class Case:
    """One that is frozen.

    Attributes:
        give: Gives it, of the shards and an empty folder.
        same_as: The name of another one, which gives the same.
    """

    give: Callable[[Path, Path], Any]
    same_as: str | None = None


def _cases() -> Iterator[tuple[str, Case]]:
    for name, make in MAKES.items():
        yield name, Case(lambda folder, _, make=make: passes(make, folder))
    for batching, options in BATCHINGS.items():
        for name in ("jsonl, shuffle", "parquet, plain"):
            make = MAKES[name]
            yield (
                f"{name}; {batching}",
                Case(lambda folder, _, make=make, options=options: passes(make, folder, **options)),
            )
    for name in ("jsonl, unknown", "parquet, shuffle", "tar, known", "mix", "mds", "litdata", "iterable"):
        make = MAKES[name]
        yield (
            f"{name}; 2 workers",
            Case(lambda folder, _, make=make: over_workers(make, folder), same_as=name),
        )
    for batching in ("padded", "packed", "buckets"):
        options = BATCHINGS[batching]
        yield (
            f"parquet, plain; {batching}; 2 workers",
            Case(
                lambda folder, _, options=options: over_workers(MAKES["parquet, plain"], folder, **options),
                same_as=f"parquet, plain; {batching}",
            ),
        )
    for name in ("jsonl, unknown", "jsonl, shuffle", "parquet, shuffle, filter, map", "mix", "zip", "mds"):
        make = MAKES[name]
        for world_size in (2, 4):
            yield (
                f"{name}; world of {world_size}",
                Case(
                    lambda folder, _, make=make, world_size=world_size: over_ranks(make, folder, world_size)
                ),
            )
        yield f"{name}; resumed", Case(lambda folder, _, make=make: resumed(make, folder))
        yield f"{name}; merged", Case(lambda folder, _, make=make: merged(make, folder, 4))
    for name in ("repeat", "take", "map_batches", "filter_batches"):
        make = MAKES[f"parquet, {name}"]
        yield f"parquet, {name}; resumed", Case(lambda folder, _, make=make: resumed(make, folder))
    for batching in ("buckets", "tokens", "packed"):
        options = BATCHINGS[batching]
        yield (
            f"jsonl, shuffle; {batching}; resumed",
            Case(lambda folder, _, options=options: resumed(MAKES["jsonl, shuffle"], folder, **options)),
        )
    for name in ("jsonl, plain", "jsonl, filter", "parquet, filter_batches"):
        make = MAKES[name]
        yield f"{name}; audited", Case(lambda folder, scratch, make=make: audited(make, folder, scratch))
    yield (
        "jsonl, plain; audited, dropped last",
        Case(
            lambda folder, scratch: audited(
                MAKES["jsonl, plain"], folder, scratch, batch_size=8, drop_last=True
            )
        ),
    )
    yield (
        "jsonl, plain; audited, one rank is lacking",
        Case(lambda folder, scratch: unfinished(MAKES["jsonl, plain"], folder, scratch)),
    )
    yield "errors", Case(errors)
    yield "map style", Case(lambda folder, _: map_style(folder, batch_size=8))
    yield "map style, shuffled", Case(lambda folder, _: map_style(folder, batch_size=8, shuffle=True))
    yield (
        "map style, shuffled; 2 workers",
        Case(
            lambda folder, _: map_style(folder, batch_size=8, shuffle=True, num_workers=2),
            same_as="map style, shuffled",
        ),
    )


CASES = dict(_cases())
