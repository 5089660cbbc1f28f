"""The dataset: where samples come from and what is done to them. Frozen, picklable, does no I/O.

``from_urls`` and ``from_iterable`` (``recipes``) begin one; each operator gives a new one. A dataset is only
a description; the loader runs it, in as many lanes and processes as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ._flow.budget import Budget
from ._flow.engine import Engine
from ._flow.residents import MakeContext
from .formats.fields import decode_sample, handlers_with
from .ops.filter import Filter, FilterBatches, Rename, Select
from .ops.lane import START, Lane, Services
from .ops.map import AsyncMap, Map, MapBatches
from .ops.op import Op, Source, is_async
from .ops.shuffle import Shuffle
from .ops.take import Repeat, Take
from .plan.topology import Topology
from .quantity import as_count
from .renamed import OPERATORS, missing
from .sources.components import Recipe
from .sources.shards import Shards
from .sources.surveying import open_survey

__all__ = ["Dataset", "dataset_of", "recipe_of"]


# Samples of a shuffle window where nothing is said.
_WINDOW = 1000

# Of shards, in flight for a look at their first samples: some parts of them at once.
_HEAD_READ_BYTES = 32 << 20


@dataclass(frozen=True)
class Dataset:
    """A source of samples, and the operators applied to them, in order.

    Make one with ``from_urls`` or ``from_iterable``. It never changes: each operator returns a new one.
    It pickles if the functions given to it do (workers get it by cloudpickle, so lambdas are fine).
    """

    _recipe: Recipe

    def __post_init__(self) -> None:
        if not isinstance(self._recipe, Recipe):
            raise TypeError(
                "a dataset is made by from_urls, from_iterable and the like, not by al.Dataset(...); "
                "map-style data of your own goes to DataLoader as it is"
            )

    def __repr__(self) -> str:
        return repr(self._recipe)

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

    def shuffle(self, window: int | None = None, *, seed: int = 0, buffer_size: int | None = None) -> Dataset:
        """Permute the shards, and the samples within windows of ``window`` samples.

        The order is a function of the seed, the epoch and the number of lanes alone.

        Args:
            window: Samples per window; each lane holds up to two windows in memory. 1,000 by default, as in
                Hugging Face's ``datasets``: some hundred MB of encoded images.
            seed: 0, so that each run can be repeated.
            buffer_size: Another name of ``window``.

        Raises:
            TypeError: Both ``window`` and ``buffer_size`` are given.
            ValueError: ``window`` is below 1.
        """
        if window is not None and buffer_size is not None:
            raise TypeError("shuffle should get window or buffer_size, which are the same, but got both")
        given = buffer_size if window is None else window
        return self._with(Shuffle(_WINDOW if given is None else given, seed))

    def select_columns(self, *fields: str) -> Dataset:
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

        Functions of the dataset are called for as many samples as are wanted, and no more; a ``.shuffle``
        fills its first window. Everything is closed when it returns. It blocks: in a coroutine, call it on
        a thread.

        Args:
            n: How many; fewer come if the dataset has fewer.

        Raises:
            ValueError: ``n`` is below 1.
            Exception: Whatever a loader would raise: of a store, of a format, of a function.
        """
        n = as_count("n", n)
        samples: list[Any] = []
        with Engine() as engine:
            budget = Budget(_HEAD_READ_BYTES, [0])
            order_seed = self._recipe.order_seed
            lane = Lane(Topology(), Services(engine, _HEAD_READ_BYTES), budget, order_seed, singly=True)
            with closing(self._recipe.open(START, lane)) as blocks:
                for block in blocks:
                    samples.extend(block.rows())
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
            ValueError: The dataset is not of Parquet shards, or the column has no such names; the message
                lists those that have.
            StoreError, FormatError: The shard cannot be read.
        """
        source = self._recipe.source
        if not isinstance(source, Shards) or source.formats[0] != "parquet":
            raise ValueError(f"class_names is noted in shards of Parquet, and the dataset is of {source!r}")
        with open_survey(source, 1) as (survey, _):
            found = survey.class_names(source.urls[0], "parquet")
        if column not in found:
            known = ", ".join(map(repr, found)) or "no column"
            raise ValueError(
                f"the first shard has no names of classes for {column!r}; it has some for {known}"
            )
        return [*found[column]]

    def __iter__(self) -> Iterator[Any]:
        """A dataset is no stream yet: raises TypeError, which says how to make one."""
        raise TypeError(
            "a dataset is not iterated itself, a loader runs it: for sample in DataLoader(ds.take(1), "
            "batch_size=None), or a batch_size for batches; ds.head(5) gives the first samples as a list. A "
            "training library that takes the loader apart to skip batches must not: load the loader's state "
            "instead (transformers: ignore_data_skip=True)"
        )

    if not TYPE_CHECKING:  # which would take them for what a recipe has

        def __init_subclass__(cls, **_: object) -> None:
            raise TypeError(
                f"al.Dataset is what from_urls and from_iterable make, and is not inherited from, but "
                f"{cls.__name__} does: inherit from torch.utils.data.Dataset for samples by index, or from "
                "al.AsyncIterableDataset or torch.utils.data.IterableDataset for a stream"
            )

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "a dataset", name, OPERATORS)

        def __len__(self) -> int:
            raise TypeError(
                "a dataset has no length: len(DataLoader(ds, batch_size)) is the number of batches, where a "
                "index tells how many samples there are"
            )

        def __getitem__(self, index: object) -> Any:
            raise TypeError(
                "a dataset is a stream, and has no samples by index: ds.head(n) gives the first as a list"
            )

        def __bool__(self) -> bool:
            return True  # where Python would ask for the length

    def _with(self, op: Op) -> Dataset:
        return Dataset(replace(self._recipe, ops=(*self._recipe.ops, op)))


def dataset_of(source: Source) -> Dataset:
    """The dataset of a source, without operators."""
    return Dataset(Recipe(source))


def recipe_of(dataset: Dataset) -> Recipe:
    """What a dataset describes, for those that read it."""
    return dataset._recipe
