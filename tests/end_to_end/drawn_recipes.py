"""Recipes, formats and batchings that hypothesis draws, over one corpus of documents in three forms.

It stands on disk as JSON Lines (rows), Parquet (columns) and tar (rows out of members).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpus import in_turn
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import asyncloader as al

__all__ = [
    "SHARDS",
    "TOKENS",
    "Batches",
    "Forms",
    "Op",
    "applied",
    "batches",
    "batchings",
    "changing",
    "drawn",
    "permuting",
]

# Documents of each shard, by their numbers of tokens. Three lanes have two shards each, one of them empty.
SHARDS = ((3, 0, 12, 5), (7,), (), (1, 1, 9, 30, 2, 4), (8, 8, 3), (0, 6, 21, 5, 2))
LANES = 3


def _documents() -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "number": 100 * shard + index,
                "tokens": [1000 * shard + 50 * index + at for at in range(length)],
            }
            for index, length in enumerate(lengths)
        ]
        for shard, lengths in enumerate(SHARDS)
    ]


TOKENS = sorted(token for shard in _documents() for document in shard for token in document["tokens"])


@dataclass(frozen=True)
class Forms:
    """The corpus on disk, in each form as a recipe that gives the same documents."""

    folder: Path

    def write(self) -> Forms:
        for number, documents in enumerate(_documents()):
            lines = "".join(json.dumps(document) + "\n" for document in documents)
            (self.folder / f"{number}.jsonl").write_text(lines)
            schema = pa.schema({"number": pa.int64(), "tokens": pa.list_(pa.int64())})
            table = pa.Table.from_pylist(documents, schema)
            pq.write_table(table, self.folder / f"{number}.parquet", row_group_size=2)
            if documents:
                with al.ShardWriter(self.folder / f"{number}.tar") as writer:
                    for document in documents:
                        writer.write({"__key__": str(document["number"]), "json": document})
            else:
                (self.folder / f"{number}.tar").write_bytes(bytes(1024))
        (self.folder / "asyncloader-index.json").unlink()
        return self

    def recipe(self, form: str) -> al.Dataset:
        # The forms are of other sizes, by which they would be dealt to other lanes.
        recipe = in_turn(al.from_urls(f"{self.folder}/{{0..{len(SHARDS) - 1}}}.{form}"))
        return recipe.decode().map(_member) if form == "tar" else recipe


def _member(sample: Mapping[str, Any]) -> Any:
    return sample["json"]


def _reversed(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {**sample, "tokens": sample["tokens"][::-1]}


async def _later(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    await asyncio.sleep(sample["number"] % 3 / 2000)  # so that results overtake one another
    return sample


def _is_wanted(sample: Mapping[str, Any]) -> bool:
    return sample["number"] % 4 != 1


def _numbered(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What it gives depends on which samples it is given together."""
    number = columns["number"]
    return {**columns, "number": number + 1000 * int(number[0])}


def _is_even(columns: Mapping[str, Any]) -> Any:
    return np.asarray(columns["number"]) % 2 == 0


Op = Callable[[al.Dataset], al.Dataset]


@dataclass(frozen=True)
class Step:
    """An operator that can be told from another one in a report."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, recipe: al.Dataset) -> al.Dataset:
        done: al.Dataset = getattr(recipe, self.name)(*self.arguments, **dict(self.options))
        return done


#: Operators that change neither which documents there are nor their tokens but for the order.
permuting = st.one_of(
    st.builds(
        lambda window, seed: Step("shuffle", (window,), (("seed", seed),)),
        st.integers(1, 9),
        st.integers(0, 3),
    ),
    st.just(Step("map", (_reversed,))),
    st.just(Step("map", (_reversed,), (("concurrency", 2),))),
    st.just(Step("map", (_later,), (("concurrency", 3),))),
    st.just(Step("select_columns", ("number", "tokens"))),
    st.builds(lambda size: Step("map_batches", (_numbered,), (("batch_size", size),)), st.integers(1, 6)),
)
changing = st.one_of(
    st.just(Step("filter", (_is_wanted,))),
    st.builds(lambda size: Step("filter_batches", (_is_even,), (("batch_size", size),)), st.integers(1, 6)),
    st.builds(lambda count: Step("take", (count,)), st.integers(1, 12)),
    st.just(Step("repeat", (2,))),
)
pools = st.one_of(st.none(), st.integers(1, 12))
batchings = st.one_of(
    st.builds(
        al.TokenBatches, max_tokens=st.integers(32, 90), multiple_of=st.sampled_from([1, 4]), pool=pools
    ),
    st.builds(
        partial(al.Buckets, bounds=(4, 9), batch_sizes=(3, 2, 1)),
        pool=st.one_of(st.none(), st.integers(1, 12)),
    ),
    st.builds(
        partial(al.Pack, "tokens"), length=st.integers(4, 24), batch_size=st.integers(1, 3), pool=pools
    ),
)


@dataclass(frozen=True)
class Batches:
    """How documents become batches: options of the loader."""

    batching: Any = None
    batch_size: int | None = 1
    drop_last: bool = False

    def loader(self, recipe: al.Dataset, workers: int = 0, **options: Any) -> al.DataLoader[Any]:
        pads = self.batching is None and self.batch_size is not None
        return al.DataLoader(
            recipe,
            self.batch_size,
            num_workers=workers,
            drop_last=self.drop_last,
            collate_fn=al.Pad({"tokens": 0}) if pads else None,
            batching=self.batching,
            **{"lanes": LANES, **options},
        )


batches = st.one_of(
    st.builds(Batches, batch_size=st.integers(1, 5), drop_last=st.booleans()),
    st.builds(Batches, batching=batchings),
    st.builds(Batches, batching=batchings),
)


def applied(recipe: al.Dataset, steps: Sequence[Op]) -> al.Dataset:
    for step in steps:
        recipe = step(recipe)
    return recipe


drawn = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
