"""The recipe: where samples come from and what is done to them. Frozen, picklable, does no I/O.

``from_urls`` and ``from_iterable`` (``recipes``) begin one; each operator gives a new one. A recipe is only a
description; the loader runs it, in as many lanes and processes as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._flow.budget import Budget
from ._flow.engine import Engine
from ._flow.residents import MakeContext
from .formats.fields import decode_sample, handlers_with
from .ops.async_map import AsyncMap
from .ops.checks import is_async
from .ops.fields import Rename, Select
from .ops.filter import Filter
from .ops.filter_batches import FilterBatches
from .ops.map import Map
from .ops.map_batches import MapBatches
from .ops.op import START, Blocks, Lane, Op, Opener, Source, call_of, shown
from .ops.repeat import Repeat
from .ops.shuffle import Shuffle
from .ops.take import Take
from .plan.counts import Counter, Deal
from .plan.topology import Topology
from .quantity import as_count
from .sources.components import components_of
from .sources.shards import Shards
from .sources.surveying import open_survey
from .types import Position

__all__ = ["Dataset"]


_F = TypeVar("_F", bound=Callable[..., Any])

#: What other libraries' pipelines have, and what to write here instead.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("batch", "batched"), "the loader makes batches: DataLoader(ds, batch_size=32)"),
    "cache": 'whole shards are kept on disk by from_urls(urls, cache_dir="/a/folder")',
    "collate": "the loader collates: DataLoader(ds, batch_size=32, collate_fn=function)",
    "prefetch": "the loader reads ahead by itself, within memory_limit=",
    "to_tuple": '.select("jpg", "cls") picks fields, and .map(lambda sample: tuple(sample.values())) makes '
    "tuples of them",
}


def _instead(**words: str) -> Callable[[_F], _F]:
    """For operators whose arguments other libraries call otherwise: by their words, what to write."""

    def decorate(operator: _F) -> _F:
        @wraps(operator)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs.keys() & words.keys():
                raise TypeError(f"{operator.__name__} has no argument {name!r}: write {words[name]}")
            return operator(*args, **kwargs)

        return cast(_F, checked)

    return decorate


# Of shards, in flight for a look at their first samples: some parts of them at once.
_HEAD_READ_BYTES = 32 << 20


@dataclass(frozen=True)
class Dataset:
    """A recipe: a source, and the operators applied to its samples, in order.

    Make one with ``from_urls`` or ``from_iterable``. It never changes: each operator returns a new one.
    It pickles if the functions given to it do (workers get it by cloudpickle, so lambdas are fine).
    """

    source: Source
    ops: tuple[Op, ...] = field(default=())

    def __repr__(self) -> str:
        return f"Dataset({', '.join([repr(self.source), *map(call_of, self.ops)])})"

    def map(
        self, fn: Callable[..., Any], *, concurrency: int = 1, context: MakeContext | None = None
    ) -> Dataset:
        """Replace each sample by ``fn(sample)``, keeping the order.

        Args:
            fn: A plain function, or a coroutine function, whose calls run on the loader's event loop
                and go on while the consumer computes.
            concurrency: How many calls at a time, in each lane. 1, so that a function that is not
                thread-safe is right by default. Coroutines overlap their waiting; plain functions run
                on threads, which pays where they release the GIL.
            context: Makes an asynchronous context manager, such as ``aiohttp.ClientSession`` or a function
                under ``@asynccontextmanager``. It is entered on the loader's event loop, once in each
                process and pass, and ``fn`` is called as ``fn(sample, value)`` with what it gave. It is
                left when the pass ends, however it ends, after the last call. Maps that are given the
                same ``context`` share it.

        Raises:
            TypeError: ``fn`` or ``context`` cannot be called.
            ValueError: ``concurrency`` is below 1.
        """
        kind = AsyncMap if is_async(fn) else Map
        return self._with(kind(fn, concurrency, context))

    def filter(self, predicate: Callable[[Any], object]) -> Dataset:
        """Keep the samples for which ``predicate(sample)`` is true.

        Args:
            predicate: A plain function that gives the same answer when asked again.

        Raises:
            TypeError: ``predicate`` cannot be called, or is a coroutine function.
        """
        return self._with(Filter(predicate))

    def map_batches(
        self,
        fn: Callable[[dict[str, Any]], Mapping[str, Any]],
        *,
        batch_size: int,
        concurrency: int = 1,
    ) -> Dataset:
        """Replace ``batch_size`` consecutive samples at a time by ``fn(columns)``, keeping the order.

        Args:
            fn: A plain function of a dict with a column for each field: an array ``(n, ...)``, an
                ``al.Ragged`` for sequences, or a list of strings, bytes or objects. It returns such a mapping
                of as many samples, which may be that dict, changed; lists and tensors in it are made
                columns. It must not write into the columns, whose arrays are read-only, and must give the
                same result when called again, since resuming inside a chunk does.
            batch_size: How many samples the function gets; fewer at the end of a lane. Without a default,
                since it is part of what the function is given, and has nothing to do with the loader's.
            concurrency: How many calls at a time, in each lane, on threads: pays where they release the GIL,
                as tokenizers and NumPy do.

        Raises:
            TypeError: ``fn`` cannot be called, or is a coroutine function. While iterating: samples are no
                mappings, or ``fn`` returns something else than columns.
            ValueError: ``batch_size`` or ``concurrency`` is below 1. While iterating: the fields differ from
                sample to sample, or a column is not of as many samples.
        """
        return self._with(MapBatches(fn, batch_size, concurrency))

    def filter_batches(self, predicate: Callable[[dict[str, Any]], Any], *, batch_size: int) -> Dataset:
        """Keep of ``batch_size`` consecutive samples at a time those that ``predicate(columns)`` is true for.

        Args:
            predicate: A plain function of a dict of columns, as ``map_batches`` has it, that returns a
                boolean mask ``(n,)``: an array, a tensor or a list. It gives the same one when asked again.
            batch_size: How many samples the function gets; fewer at the end of a lane.

        Raises:
            TypeError: ``predicate`` cannot be called, or is a coroutine function. While iterating: samples
                are no mappings.
            ValueError: ``batch_size`` is below 1. While iterating: the fields differ from sample to sample,
                or the answer is no such mask.
        """
        return self._with(FilterBatches(predicate, batch_size))

    @_instead(buffer_size=".shuffle(window)", bufsize=".shuffle(window)")
    def shuffle(self, window: int, *, seed: int = 0) -> Dataset:
        """Permute the shards, and the samples within windows of ``window`` samples.

        The order is a function of the seed, the epoch and the number of lanes alone.

        Args:
            window: Samples per window; each lane holds up to two windows in memory.
            seed: 0, so that a run can be repeated without anybody having thought of it.

        Raises:
            ValueError: ``window`` is below 1.
        """
        return self._with(Shuffle(window, seed))

    def select(self, *fields: str) -> Dataset:
        """Keep only the named fields of each sample, in this order.

        Raises:
            TypeError: A name is no string.
            ValueError: No field is named.
            KeyError: While iterating: a sample lacks one.
        """
        return self._with(Select(fields))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """Give fields other names: ``rename({"jpg": "image"})`` or ``rename(jpg="image")``.

        Raises:
            TypeError: A name is no string.
            ValueError: No field is named, or two would get the same name.
            KeyError: While iterating: a sample lacks one.
        """
        return self._with(Rename(tuple({**(names or {}), **more}.items())))

    def decode(
        self, handlers: Mapping[str, Callable[[bytes], Any]] | None = None, *, concurrency: int = 1
    ) -> Dataset:
        """Decode the usual fields by their extension: ``json``, ``txt``, ``cls``, ``npy``, images.

        Files of Hugging Face's data sets, ``{"bytes": ..., "path": ...}``, go by their content, if they are
        images, or by their path's extension. Nothing is ever unpickled. Unknown extensions stay bytes.

        Args:
            handlers: By extension; added to the usual ones, in place of those of the same name.
            concurrency: How many samples at a time, on threads; pays for images.

        Raises:
            TypeError: ``handlers`` is no mapping, or holds something else than functions by extension.
            ValueError: ``concurrency`` is below 1.
            FormatError: While iterating: a field does not decode; names field and key.
        """
        return self._with(Map(partial(decode_sample, handlers=handlers_with(handlers)), concurrency))

    def repeat(self, times: int | None = None) -> Dataset:
        """The samples so far ``times`` times over in each epoch, shuffled anew; None: for ever.

        Raises:
            ValueError: ``times`` is below 1.
        """
        return self._with(Repeat(times))

    def take(self, count: int) -> Dataset:
        """Only the first ``count`` samples, dealt evenly to the lanes.

        Raises:
            ValueError: ``count`` is below 1.
        """
        return self._with(Take(count))

    def head(self, n: int = 5) -> list[Any]:
        """The first ``n`` samples, to look at: those of epoch 0 in one lane, made in this process.

        Functions of the recipe are called for as many samples as are wanted, and no more; a ``.shuffle``
        fills its first window. Everything is closed when it returns. It blocks: in a coroutine, call it on
        a thread.

        Args:
            n: How many; fewer come if the recipe has fewer.

        Raises:
            ValueError: ``n`` is below 1.
            Exception: Whatever a loader would raise: of a store, of a format, of a function.
        """
        n = as_count("n", n)
        samples: list[Any] = []
        with Engine() as engine:
            budget = Budget(_HEAD_READ_BYTES, [0])
            lane = Lane(Topology(), engine, budget, _HEAD_READ_BYTES, self.order_seed)
            with closing(self.open(START, lane)) as blocks:
                for block in lane.want.pull(blocks, lambda: n - len(samples)):
                    samples.extend(block.part(0, n - len(samples)).rows())
                    if len(samples) == n:
                        break
        return samples

    def class_names(self, column: str) -> list[str]:
        """The names of the classes that a column of labels numbers, from 0 on.

        Hugging Face's ``datasets`` notes them (``ClassLabel``) in the Parquet files that it writes; the first
        shard is asked for its footer. It blocks: in a coroutine, call it on a thread.

        Args:
            column: As the shards call it, whatever ``.rename`` makes of it.

        Raises:
            ValueError: The recipe is not of Parquet shards, or the column has no such names; the message
                lists those that have.
            StoreError, FormatError: The shard cannot be read.
        """
        source = self.source
        if not isinstance(source, Shards) or source.formats[0] != "parquet":
            raise ValueError(f"class_names is noted in shards of Parquet, and the recipe is of {source!r}")
        with open_survey(source, 1) as (survey, _):
            found = survey.class_names(source.urls[0], "parquet")
        if column not in found:
            known = ", ".join(map(repr, found)) or "no column"
            raise ValueError(
                f"the first shard has no names of classes for {column!r}; it has some for {known}"
            )
        return [*found[column]]

    def __iter__(self) -> Iterator[Any]:
        """A recipe is no stream yet: raises TypeError, which says how to make one."""
        raise TypeError(
            "a recipe is not iterated itself, a loader runs it: for sample in DataLoader(ds.take(1), "
            "batch_size=None), or a batch_size for batches; ds.head(5) gives the first samples as a list. A "
            "training library that takes the loader apart to skip batches must not: load the loader's state "
            "instead (transformers: ignore_data_skip=True)"
        )

    if not TYPE_CHECKING:  # which would take them for what a recipe has

        def __getattr__(self, name: str) -> Any:
            advice = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"a recipe (Dataset) has no {name!r}{advice}", name=name, obj=self)

        def __len__(self) -> int:
            raise TypeError(
                "a recipe has no length: len(DataLoader(ds, batch_size)) is the number of batches, where a "
                "manifest tells how many samples there are"
            )

        def __getitem__(self, index: object) -> Any:
            raise TypeError(
                "a recipe is a stream, and has no samples by index: ds.head(n) gives the first ones as a list"
            )

        def __bool__(self) -> bool:
            return True  # where Python would ask for the length

    def open(self, start: Position, lane: Lane) -> Blocks:
        """Run the recipe for one lane from a position on; the loader's side of the recipe."""
        opener: Opener = partial(_open_source, self.source)
        for number, op in enumerate(self.ops):
            opener = partial(_open_op, op, number, opener)
        return opener(start, lane)

    def count_samples(self, deal: Deal) -> list[float]:
        """How many samples each lane of ``deal`` will have; raises ``UnknownCount`` with the reason."""
        counter: Counter = self.source.count_samples
        for op in self.ops:
            counter = partial(op.count_samples, counter)
        # Components have orders of their own, and the schedule of a mixture is drawn anew in each repetition.
        return counter(replace(deal, varies=deal.varies or bool(components_of(self.source))))

    @property
    def order_seed(self) -> int | None:
        """Seed of the first shuffle, which also draws the order of shards; None if there is none."""
        return next((op.seed for op in self.ops if isinstance(op, Shuffle)), None)

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Its operators, behind those of all recipes that it is made of."""
        return (*chain.from_iterable(recipe.all_ops for recipe in components_of(self.source)), *self.ops)

    @property
    def has_context(self) -> bool:
        """Whether something of the user's is to be left at the end of a pass."""
        return any(getattr(op, "context", None) is not None for op in self.all_ops)

    @property
    def runs_ahead(self) -> bool:
        """Whether an operator goes on by itself, on threads or on the loop, while nobody pulls."""
        return any(isinstance(op, AsyncMap) or getattr(op, "concurrency", 1) > 1 for op in self.all_ops)

    @property
    def runs_on_threads(self) -> bool:
        """Whether an operator calls the user's functions on threads of its own."""
        return any(isinstance(op, Map) and op.concurrency > 1 for op in self.all_ops)

    def describe(self) -> dict[str, Any]:
        """What a saved state must match, as JSON values, without secrets."""
        return {**self.source.describe(), "ops": [dict(op.describe()) for op in self.ops]}

    def _with(self, op: Op) -> Dataset:
        return replace(self, ops=(*self.ops, op))


def _open_source(source: Source, start: Position, lane: Lane) -> Blocks:
    return lane.stopwatch.timed(source.stage, source.open(start, lane))


def _open_op(op: Op, number: int, upstream: Opener, start: Position, lane: Lane) -> Blocks:
    return lane.stopwatch.timed(shown(op), op.open(upstream, start, replace(lane, operator=number)))
