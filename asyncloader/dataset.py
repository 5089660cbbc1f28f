"""The recipe: where samples come from and what is done to them. Frozen, picklable, does no I/O.

``from_urls`` and ``from_iterable`` begin one; each operator gives a new one. A recipe is only a
description; the loader runs it, in as many lanes and processes as it likes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from ._flow.budget import Budget
from ._flow.engine import Engine
from .cache.setting import cache_setting
from .catalog import make_catalog
from .formats import check_selection
from .formats.columnar.selection import make_selection
from .formats.fields import decode_sample, default_handlers
from .ops.async_map import AsyncMap
from .ops.context import MakeContext
from .ops.fields import Rename, Select
from .ops.filter import Filter
from .ops.filter_batches import FilterBatches
from .ops.map import Map
from .ops.map_batches import MapBatches
from .ops.op import START, Blocks, Lane, Op, Opener, Source
from .ops.repeat import Repeat
from .ops.shuffle import Shuffle
from .ops.take import Take
from .plan.counts import Counter, Deal
from .plan.topology import Topology
from .sources.iterables import Iterables, Make
from .sources.shards import Shards
from .stores.access import Access, Renew
from .stores.objects.options import check_buckets
from .stores.policy import NetworkPolicy
from .types import Position

__all__ = ["AsyncIterableDataset", "Dataset", "from_iterable", "from_urls"]


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
        return f"Dataset({', '.join([repr(self.source), *map(_shown, self.ops)])})"

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
        _check_callable("map", fn)
        _check_count("concurrency", concurrency)
        # One that is made already may be callable too: contextlib's are decorators as well.
        made = hasattr(context, "__aenter__") and not isinstance(context, type)
        if context is not None and (made or not callable(context)):
            raise TypeError(
                "context should be a function that makes an asynchronous context manager in each process, "
                f"such as the class itself, but got a {type(context).__name__}"
            )
        kind = AsyncMap if _is_async(fn) else Map
        return self._with(kind(fn, concurrency, context))

    def filter(self, predicate: Callable[[Any], object]) -> Dataset:
        """Keep the samples for which ``predicate(sample)`` is true.

        Args:
            predicate: A plain function that gives the same answer when asked again.

        Raises:
            TypeError: ``predicate`` cannot be called, or is a coroutine function.
        """
        _check_callable("filter", predicate)
        if _is_async(predicate):
            raise TypeError(
                "filter should get a plain function, but got a coroutine function; "
                "put its answer into the sample with .map, then filter by that field"
            )
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
                columns. It must not write into a column, which may be read-only memory, and must give the
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
        _check_callable("map_batches", fn, "columns")
        _check_count("batch_size", batch_size)
        _check_count("concurrency", concurrency)
        if _is_async(fn):
            raise TypeError("map_batches should get a plain function, but got a coroutine function; use .map")
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
        _check_callable("filter_batches", predicate, "columns")
        _check_count("batch_size", batch_size)
        if _is_async(predicate):
            raise TypeError("filter_batches should get a plain function, but got a coroutine function")
        return self._with(FilterBatches(predicate, batch_size))

    def shuffle(self, window: int, *, seed: int = 0) -> Dataset:
        """Permute the shards, and the samples within windows of ``window`` samples.

        The order is a function of the seed, the epoch and the number of lanes alone.

        Args:
            window: Samples per window; each lane holds up to two windows in memory.
            seed: 0, so that a run can be repeated without anybody having thought of it.

        Raises:
            ValueError: ``window`` is below 1.
        """
        _check_count("window", window)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed should be an int, but got seed={seed!r}")
        return self._with(Shuffle(window, seed))

    def select(self, *fields: str) -> Dataset:
        """Keep only the named fields of each sample, in this order.

        Raises:
            TypeError: A name is no string.
            ValueError: No field is named.
            KeyError: While iterating: a sample lacks one.
        """
        if not fields:
            raise ValueError("select should get at least one field name")
        _check_names("select", fields)
        return self._with(Select(fields))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """Give fields other names: ``rename({"jpg": "image"})`` or ``rename(jpg="image")``.

        Raises:
            TypeError: A name is no string.
            ValueError: No field is named, or two would get the same name.
            KeyError: While iterating: a sample lacks one.
        """
        pairs = {**(names or {}), **more}
        if not pairs:
            raise ValueError("rename should get at least one pair of names")
        _check_names("rename", (*pairs, *pairs.values()))
        if len(set(pairs.values())) < len(pairs):
            raise ValueError(f"rename would give two fields the same name: {pairs}")
        return self._with(Rename(tuple(pairs.items())))

    def decode(
        self, handlers: Mapping[str, Callable[[bytes], Any]] | None = None, *, concurrency: int = 1
    ) -> Dataset:
        """Decode the usual fields by their extension: ``json``, ``txt``, ``cls``, ``npy``, images.

        Nothing is ever unpickled. Unknown extensions stay bytes.

        Args:
            handlers: By extension; added to the usual ones, in place of those of the same name.
            concurrency: How many samples at a time, on threads; pays for images.

        Raises:
            TypeError: ``handlers`` is no mapping, or holds something else than functions by extension.
            ValueError: ``concurrency`` is below 1.
            FormatError: While iterating: a field does not decode; names field and key.
        """
        _check_count("concurrency", concurrency)
        if handlers is not None and not isinstance(handlers, Mapping):
            raise TypeError(
                f"decode should get a mapping of functions by extension, but got {type(handlers).__name__}: "
                f"{handlers!r}; write .decode() for RGB arrays of images, or .decode({{'jpg': fn}}) with a "
                "function that makes of the bytes what you want"
            )
        for extension, handler in (handlers or {}).items():
            if not isinstance(extension, str) or not callable(handler):
                raise TypeError(
                    f"decode should get functions by extension, but got {extension!r}: {handler!r}"
                )
        decode = partial(decode_sample, handlers={**default_handlers, **(handlers or {})})
        return self._with(Map(decode, concurrency))

    def repeat(self, times: int | None = None) -> Dataset:
        """The samples so far ``times`` times over in each epoch, shuffled anew; None: for ever.

        Raises:
            ValueError: ``times`` is below 1.
        """
        if times is not None:
            _check_count("times", times)
        return self._with(Repeat(times))

    def take(self, count: int) -> Dataset:
        """Only the first ``count`` samples, dealt evenly to the lanes.

        Raises:
            ValueError: ``count`` is below 1.
        """
        _check_count("count", count)
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
        _check_count("n", n)
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

    def __iter__(self) -> Iterator[Any]:
        """A recipe is no stream yet: raises TypeError, which says how to make one."""
        raise TypeError(
            "a recipe is not iterated itself, a loader runs it: for sample in DataLoader(ds.take(1), "
            "batch_size=None), or a batch_size for batches; ds.head(5) gives the first samples as a list"
        )

    def open(self, start: Position, lane: Lane) -> Blocks:
        """Run the recipe for one lane from a position on; the loader's side of the recipe."""
        opener: Opener = self.source.open
        for number, op in enumerate(self.ops):
            opener = partial(_open_op, op, number, opener)
        return opener(start, lane)

    def count_samples(self, deal: Deal) -> list[float]:
        """How many samples each lane of ``deal`` will have; raises ``UnknownCount`` with the reason."""
        counter: Counter = self.source.count_samples
        for op in self.ops:
            counter = partial(op.count_samples, counter)
        return counter(deal)

    @property
    def order_seed(self) -> int | None:
        """Seed of the first shuffle, which also draws the order of shards; None if there is none."""
        return next((op.seed for op in self.ops if isinstance(op, Shuffle)), None)

    @property
    def has_context(self) -> bool:
        """Whether something of the user's is to be left at the end of a pass."""
        return any(getattr(op, "context", None) is not None for op in self.ops)

    @property
    def runs_ahead(self) -> bool:
        """Whether an operator goes on by itself, on threads or on the loop, while nobody pulls."""
        return any(isinstance(op, AsyncMap) or getattr(op, "concurrency", 1) > 1 for op in self.ops)

    @property
    def runs_on_threads(self) -> bool:
        """Whether an operator calls the user's functions on threads of its own."""
        return any(isinstance(op, Map) and op.concurrency > 1 for op in self.ops)

    def describe(self) -> dict[str, Any]:
        """What a saved state must match, as JSON values, without secrets."""
        return {**self.source.describe(), "ops": [dict(op.describe()) for op in self.ops]}

    def _with(self, op: Op) -> Dataset:
        return replace(self, ops=(*self.ops, op))


class AsyncIterableDataset:
    """A source of your own: subclass it and write ``async def __aiter__(self)`` as a generator.

    It is iterated once for each lane and epoch, and must yield only that lane's part: ask
    ``get_topology()`` before the first sample. One that does not ask is refused as soon as there is
    more than one lane. Pass it to the loader as it is, or to ``from_iterable`` to add operators.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        raise TypeError(f"{type(self).__name__} should define __aiter__ as an asynchronous generator")


def from_urls(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    manifest: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    columns: Iterable[str] | None = None,
    filters: Any = None,
) -> Dataset:
    """A recipe that streams the samples of shards.

    Args:
        urls: One URL or path, or several: ``http(s)://``, ``s3://``, ``gs://``, ``az://``,
            ``hf://datasets/``, ``file://`` and plain paths, also with ``~``; with brace ranges
            (``train-{000..127}.tar``), which are the way to name many, and lists (``{a,b}``). Globs and
            prefixes (``s3://bucket/train/``) of all but web servers are looked up now, once, and their
            matches sorted; for object stores in a process of its own.
        format: ``"tar"``, ``"jsonl"``, ``"text"``, ``"parquet"`` or ``"arrow"``, for shards whose suffix does
            not tell. A compression is found by content.
        storage_options: Endpoint, region, credentials, headers; see ``docs/reference/urls.md``.
        network: Time-outs, retries and hedging; the default suits stores near and far.
        renew: For presigned URLs that expire: called with a shard's URL when the server refuses it (400,
            401, 403), and gives one that is signed anew. Plain functions run on a thread, coroutine
            functions on the loader's loop. Not called for a presigned ``manifest``, which is read now.
        manifest: Where the shards' ``manifest.json`` is, against which each of them is checked. Beside
            local shards, and in folders that are looked into anyway, it is found by itself.
        cache_dir: Keep shards of servers in this folder, whole, for later epochs and runs and for all
            processes of the machine. None, the default, keeps nothing: not every disk has room.
        cache_limit: Most bytes kept there, as an int or as ``"200GB"`` or ``"1 TiB"``; 64 GiB by default.
        columns: Of Parquet and Arrow: names of the columns that become fields, in this order. Of Parquet no
            others are requested. None, the default, takes all.
        filters: Of Parquet and Arrow: keep the rows that meet an expression of ``pyarrow.compute``, such as
            ``pc.field("n") > 3``, or a list of tuples ``("n", ">", 3)`` that must all hold, or of such lists,
            of which one must hold. Of Parquet, row groups that have no such row by their statistics are not
            requested. A column may be filtered by and not be among ``columns``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths, or an option is of a wrong type.
        ValueError: No shard, an unknown scheme, format or storage option, a glob or prefix without a
            match, a manifest that does not know a shard, a folder that cannot hold a cache, ``renew`` where
            no shard is behind http(s), or ``columns`` or ``filters`` for a format without columns.
        ImportError: Shards are Parquet or Arrow, and pyarrow is not installed.
        StoreError: A server cannot be asked for a listing, or a manifest not be read; or a folder, glob or
            prefix lacks shards that its manifest lists. Names, lists and braces are taken for a selection.
        FormatError: The manifest is not sound.
    """
    if network is not None and not isinstance(network, NetworkPolicy):
        raise TypeError(f"network should be a NetworkPolicy, but got {type(network).__name__}")
    if renew is not None and not callable(renew):
        raise TypeError(f"renew should be a function of a URL, but got {type(renew).__name__}")
    selection = make_selection(columns, filters)
    cache = cache_setting(cache_dir, cache_limit)
    access = Access(dict(storage_options or {}), network or NetworkPolicy(), renew, cache)
    catalog = make_catalog(urls, format, manifest, access.options, access.network)
    check_buckets(catalog.urls.examples, access.options)
    if renew is not None and not any(scheme.is_renewed for scheme in catalog.schemes):
        raise ValueError(
            "renew is for presigned http(s):// URLs, which expire, but none of the shards has one; keys of "
            "an object store that expire are given by storage_options={'credential_provider': function}"
        )
    check_selection(selection, catalog.formats)
    return Dataset(Shards(catalog.urls, catalog.formats, access, catalog.checks, selection))


def from_iterable(make: Make | Iterable[Any] | AsyncIterable[Any]) -> Dataset:
    """A recipe over iterables of your own, plain or asynchronous.

    Args:
        make: A function of a ``Topology`` that gives the iterable of one lane, such as
            ``lambda topology: topology.split(range(1000))``; or an iterable object that asks
            ``get_topology()`` when it is iterated. While either is iterated, torch's worker info says
            worker 0 of 1, so that a library below does not split a lane's part once more; an object that
            asks for both is refused with a ``RuntimeError``, since its samples might come twice.

    Raises:
        TypeError: ``make`` is neither.
    """
    if isinstance(make, Dataset):
        raise TypeError("from_iterable should get an iterable, but got a recipe, which needs no more")
    if isinstance(make, AsyncIterator) or (hasattr(make, "__next__") and not callable(make)):
        raise TypeError(
            f"from_iterable should get something that can be iterated in every epoch, but got "
            f"{type(make).__name__}, which runs out; pass a function that makes one"
        )
    if not callable(make) and not isinstance(make, Iterable | AsyncIterable):
        raise TypeError(
            "from_iterable should get an iterable or a function that makes one, "
            f"but got {type(make).__name__}"
        )
    return Dataset(Iterables(make))


def _open_op(op: Op, number: int, upstream: Opener, start: Position, lane: Lane) -> Blocks:
    return op.open(upstream, start, replace(lane, operator=number))


def _shown(op: Op) -> str:
    """An operator as it is called, its function by name only."""
    described = dict(op.describe())
    name = described.pop("op")
    parameters = [str(described.pop("fn"))] if "fn" in described else []
    parameters += [f"{parameter}={value!r}" for parameter, value in described.items()]
    return f"{name}({', '.join(parameters)})"


def _is_async(fn: Callable[..., Any]) -> bool:
    target = fn.func if isinstance(fn, partial) else fn
    return iscoroutinefunction(target) or iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004  # the method itself is asked for


def _check_callable(name: str, fn: object, of: str = "one sample") -> None:
    if not callable(fn):
        raise TypeError(f"{name} should get a function of {of}, but got {type(fn).__name__}")


def _check_names(op: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{op} should get field names, but got {type(name).__name__}: {name!r}")


def _check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={count!r}")
