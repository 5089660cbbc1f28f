"""The dataset: where samples come from and what is done to them. Frozen, picklable, does no I/O.

``from_urls`` and ``from_iterable`` make one, and each operator makes a new one of it. A dataset is only a
description; the loader runs it, in several lanes and processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from ..flow.budget import Budget
from ..flow.engine import Engine, MakeContext
from ..formats.fields import decode_sample, handlers_with
from ..plan.mixing import EpochWeights, Stop, Weights
from ..plan.topology import Topology
from ..quantity import as_count, as_whole
from .components import Composed, Concat, Stages, Zipped
from .filter import Filter, FilterBatches, Rename, Select
from .lane import START, Lane, Services
from .map import Map, MapBatches
from .mixture import Mixture
from .op import Op, Source
from .renamed import OPERATORS, missing
from .shards import Shards
from .shuffle import Shuffle
from .sources import Iterables, Make
from .take import Repeat, Take

# Samples of a shuffle window by default.
_WINDOW = 1000

# Bytes of shards in flight for ``head``: some parts of them at once.
_HEAD_READ_BYTES = 32 << 20


@dataclass(frozen=True)
class Dataset:
    """A source of samples, and the operators that are applied to them, in order.

    Make one with ``from_urls``, ``from_iterable`` and similar functions, and iterate it with a
    ``DataLoader``. A dataset never changes: each operator returns a new one. It can be pickled if its
    functions can; workers get it by cloudpickle, so lambdas work.

    Example:
        ```python
        import asyncloader as al

        numbers = al.from_iterable(range(1000))
        even = numbers.filter(lambda number: number % 2 == 0).map(lambda number: number * 10)
        print(even.head(3))  # [0, 20, 40]
        loader = al.DataLoader(even.shuffle(100, seed=0), batch_size=50)
        ```
    """

    _stages: Stages

    def __post_init__(self) -> None:
        if not isinstance(self._stages, Stages):
            raise TypeError(
                "a dataset is made by from_urls, from_iterable and similar functions, not by "
                "al.Dataset(...); give map-style data of your own to DataLoader as it is"
            )

    def __repr__(self) -> str:
        return repr(self._stages)

    def map(
        self, fn: Callable[..., Any], *, concurrency: int = 1, context: MakeContext | None = None
    ) -> Dataset:
        """Replace each sample by ``fn(sample)``. The order stays.

        An exception of ``fn`` keeps its type, and gets notes that name the operator and the sample. For
        random numbers use ``al.sample_rng()``.

        Example:
            ```python
            import asyncio
            import asyncloader as al

            async def ask(number):
                await asyncio.sleep(0.01)  # a web service
                return number * 10

            dataset = al.from_iterable(range(100)).map(ask, concurrency=32)
            print(dataset.head(3))  # [0, 10, 20]
            ```

        Args:
            fn: A plain function or a coroutine function. Calls of a coroutine function run on the loader's
                event loop, also while the consumer computes.
            concurrency: The most calls at a time, in each lane. 1 by default, since a function may not be
                thread-safe. Coroutines overlap their waiting. Plain functions run on threads, which helps if
                they release the GIL.
            context: A function that makes an asynchronous context manager, such as ``aiohttp.ClientSession``
                or a function under ``@asynccontextmanager``. The loader enters it on its event loop, once in
                each process and pass, and calls ``fn(sample, value)`` with its value. It leaves the context
                after the last call, also after a ``break`` or an error, and waits at most four seconds for
                that. Maps with the same ``context`` share its value. None: ``fn`` gets the sample only.

        Returns:
            A new dataset.

        Raises:
            TypeError: ``fn`` or ``context`` cannot be called.
            ValueError: ``concurrency`` is below 1.
        """
        return self._with(Map(fn, concurrency, context))

    def filter(self, predicate: Callable[[Any], object]) -> Dataset:
        """Keep the samples for which ``predicate(sample)`` is true.

        ``len(loader)`` is then unknown, unless ``.take(count)`` follows.

        Example:
            ```python
            import asyncloader as al

            dataset = al.from_urls("shards/train-*.tar").filter(lambda sample: sample["cls"] != b"0")
            ```

        Args:
            predicate: A plain function. It must return the same for the same sample, since a resume calls it
                again for some samples.

        Returns:
            A new dataset.

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
        """Replace chunks of ``batch_size`` consecutive samples by ``fn(columns)``. The order stays.

        Example:
            ```python
            import asyncloader as al

            def add(columns):
                columns["sum"] = columns["a"] + columns["b"]
                return columns

            dataset = al.from_iterable([{"a": number, "b": 1} for number in range(100)])
            print(dataset.map_batches(add, batch_size=32).head(1))
            ```

        Args:
            fn: A plain function of a dict with a column for each field: an array ``(n, ...)``, an
                ``al.Ragged`` of sequences, or a list of strings, bytes or objects. It returns a mapping of
                columns for the same number of samples, which may be the dict that it got. Lists and tensors
                in it become columns. The arrays that it gets are read-only. It must return the same for the
                same chunk, since a resume inside the chunk calls it again.
            batch_size: Samples of a chunk; the last chunk of a lane may have fewer. It has no default, since
                results may depend on it. It is independent of the loader's ``batch_size``.
            concurrency: The most calls at a time, in each lane, on threads. 1 by default; more helps if the
                function releases the GIL, as tokenizers and NumPy do.

        Returns:
            A new dataset.

        Raises:
            TypeError: ``fn`` cannot be called, or is a coroutine function. While iterating: a sample is not a
                mapping, or ``fn`` does not return columns.
            ValueError: ``batch_size`` or ``concurrency`` is below 1. While iterating: the fields differ from
                sample to sample, or ``fn`` returns a column of another number of samples.
        """
        return self._with(MapBatches(fn, batch_size, concurrency))

    def filter_batches(self, predicate: Callable[[dict[str, Any]], Any], *, batch_size: int) -> Dataset:
        """Keep the samples of each chunk of ``batch_size`` that ``predicate(columns)`` selects.

        Args:
            predicate: A plain function of a dict of columns, as for ``map_batches``. It returns a boolean
                mask ``(n,)``, true for the samples to keep: an array, a tensor or a list. It must return the
                same for the same chunk, since a resume inside the chunk calls it again.
            batch_size: Samples of a chunk; the last chunk of a lane may have fewer.

        Returns:
            A new dataset.

        Raises:
            TypeError: ``predicate`` cannot be called, or is a coroutine function. While iterating: a sample
                is not a mapping.
            ValueError: ``batch_size`` is below 1. While iterating: the fields differ from sample to sample,
                or ``predicate`` does not return such a mask.
        """
        return self._with(FilterBatches(predicate, batch_size))

    def shuffle(self, window: int | None = None, *, seed: int = 0, buffer_size: int | None = None) -> Dataset:
        """Permute the shards, and the samples within windows of ``window`` consecutive samples of a lane.

        The order depends only on the seed, the epoch and the number of lanes. The first ``.shuffle`` of a
        dataset permutes the shards, wherever it stands.

        Example:
            ```python
            import asyncloader as al

            dataset = al.from_urls("shards/train-*.tar").shuffle(1000, seed=0)
            loader = al.DataLoader(dataset, batch_size=32)  # each pass is the next epoch, in a new order
            ```

        Args:
            window: Samples of a window. Each lane holds up to two windows in memory, in addition to
                ``memory_limit``. 1,000 by default, as in Hugging Face's ``datasets``: about 100 MB of encoded
                images.
            seed: The seed of the order; each epoch draws a new one. 0 by default, so that runs can be
                repeated.
            buffer_size: Another name for ``window``, as in ``datasets``.

        Returns:
            A new dataset.

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

        Args:
            fields: Names of fields, at least one.

        Returns:
            A new dataset.

        Raises:
            TypeError: A name is not a string.
            ValueError: No field is named.
            KeyError: While iterating: a sample lacks a field.
        """
        return self._with(Select(fields))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """Rename fields: ``rename({"jpg": "image"})`` or ``rename(jpg="image")``.

        Args:
            names: New names by old names, for names that cannot be keyword arguments.
            more: The same, as keyword arguments.

        Returns:
            A new dataset.

        Raises:
            TypeError: A name is not a string.
            ValueError: No field is named, or two would get the same name.
            KeyError: While iterating: a sample lacks a field.
        """
        return self._with(Rename(tuple({**(names or {}), **more}.items())))

    def decode(
        self, handlers: Mapping[str, Callable[[bytes], Any]] | None = None, *, concurrency: int = 1
    ) -> Dataset:
        """Decode fields by their extension: ``json``, ``txt``, ``cls``, ``npy`` and images.

        Files in Hugging Face's data sets, ``{"bytes": ..., "path": ...}``, are decoded by their content if
        they are images, and otherwise by the extension of their path. Fields with an unknown extension stay
        bytes. Pickles are never loaded.

        Args:
            handlers: Functions of bytes, by extension, which are added to the usual ones or replace them.
                None: only the usual ones.
            concurrency: The most samples at a time, in each lane, on threads. 1 by default; more helps for
                images.

        Returns:
            A new dataset.

        Raises:
            TypeError: ``handlers`` is not a mapping of extensions to functions.
            ValueError: ``concurrency`` is below 1.
            FormatError: While iterating: a field cannot be decoded; the message names the field and the key.
        """
        return self._with(Map(partial(decode_sample, handlers=handlers_with(handlers)), concurrency))

    def repeat(self, times: int | None = None) -> Dataset:
        """Repeat the samples in each epoch. Shuffled samples come in a new order each time.

        Args:
            times: How many times they come in an epoch. None, the default: without end, unless a hundred
                repetitions in a row have no sample.

        Returns:
            A new dataset.

        Raises:
            ValueError: ``times`` is below 1.
            RuntimeError: While iterating, with ``times=None``: a filter after it has dropped all samples of a
                hundred repetitions, or a million samples in a row, and might run forever.
        """
        return self._with(Repeat(times))

    def take(self, count: int) -> Dataset:
        """Keep only ``count`` samples. Each lane keeps the first of its own, an equal part of the count.

        If a lane has too few, a warning comes at the end of the pass. Without ``.shuffle``, all epochs have
        the same samples; with it, each epoch draws others.

        Args:
            count: The number of samples of all lanes together.

        Returns:
            A new dataset.

        Raises:
            ValueError: ``count`` is below 1.
        """
        return self._with(Take(count))

    def head(self, n: int = 5) -> list[Any]:
        """Return the first ``n`` samples of epoch 0 in a single lane, made in this process, to look at them.

        It calls the functions of the dataset for as many samples as it needs; a ``.shuffle`` fills its first
        window. It blocks: in a coroutine, call it on a thread.

        Args:
            n: The number of samples.

        Returns:
            The samples, in order; fewer than ``n`` if the dataset has fewer.

        Raises:
            ValueError: ``n`` is below 1.
            Exception: What a loader would raise: a ``StoreError``, a ``FormatError`` or an error of a
                function.
        """
        n = as_count("n", n)
        samples: list[Any] = []
        with Engine() as engine:
            budget = Budget(_HEAD_READ_BYTES, [0]).of(0)
            order_seed = self._stages.order_seed
            lane = Lane(Topology(), Services(engine, _HEAD_READ_BYTES), budget, order_seed, singly=True)
            with closing(self._stages.open(START, lane)) as blocks:
                for block in blocks:
                    samples.extend(block.rows())
                    if len(samples) == n:
                        break
        return samples

    def class_names(self, column: str) -> list[str]:
        """Return the names of the classes in a column of labels.

        Hugging Face's ``datasets`` writes them (``ClassLabel``) into the footers of Parquet files. This reads
        the footer of the first shard. It blocks: in a coroutine, call it on a thread.

        Args:
            column: Name of the column in the shards, before any ``.rename``.

        Returns:
            The names, in the order of the labels from 0.

        Raises:
            ValueError: The shards are not Parquet, or the column has no such names; the message lists the
                columns that have some.
            StoreError, FormatError: The shard cannot be read.
        """
        source = self._stages.source
        if not isinstance(source, Shards) or source.formats[0] != "parquet":
            raise ValueError(f"class_names needs shards of Parquet, but the dataset is of {source!r}")
        with source.open_survey(1) as (survey, _):
            found = survey.class_names(source.urls[0], "parquet")
        if column not in found:
            known = ", ".join(map(repr, found)) or "no column"
            raise ValueError(
                f"the first shard has no names of classes for {column!r}; it has them for {known}"
            )
        return [*found[column]]

    def __iter__(self) -> Iterator[Any]:
        """Raise TypeError: a dataset is iterated by a loader; the message says how to make one."""
        raise TypeError(
            "a dataset is not iterated itself, a loader runs it: for sample in DataLoader(ds.take(1), "
            "batch_size=None), or a batch_size for batches; ds.head(5) gives the first samples as a list. A "
            "training library that takes the loader apart to skip batches must not: load the loader's state "
            "instead (transformers: ignore_data_skip=True)"
        )

    if not TYPE_CHECKING:  # type checkers should report unknown attributes, and these exist only to raise

        def __init_subclass__(cls, **_: object) -> None:
            raise TypeError(
                f"al.Dataset cannot be subclassed, since from_urls and from_iterable make it, but "
                f"{cls.__name__} does so: inherit from torch.utils.data.Dataset for samples by index, or "
                "from al.AsyncIterableDataset or torch.utils.data.IterableDataset for a stream"
            )

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "a dataset", name, OPERATORS)

        def __len__(self) -> int:
            raise TypeError(
                "a dataset has no length: with an index, len(DataLoader(ds, batch_size)) is the number of "
                "batches"
            )

        def __getitem__(self, index: object) -> Any:
            raise TypeError(
                "a dataset is a stream, and has no samples by index: ds.head(n) returns the first as a list"
            )

        def __bool__(self) -> bool:
            return True  # otherwise Python would call __len__

    def _with(self, op: Op) -> Dataset:
        return Dataset(replace(self._stages, ops=(*self._stages.ops, op)))


def dataset_of(source: Source) -> Dataset:
    """The dataset of a source, without operators."""
    return Dataset(Stages(source))


def stages_of(dataset: Dataset) -> Stages:
    """The source and the operators of a dataset."""
    return dataset._stages


# --- datasets of iterables ---


class AsyncIterableDataset:
    """The base class for an asynchronous source of your own.

    Define ``async def __aiter__(self)`` as a generator. The loader iterates it once for each lane and epoch,
    and it must yield only the part of that lane, which it finds by ``get_topology()``. If it does not call
    that before its first sample and there are several lanes, the loader raises ``RuntimeError``. Pass the
    object to the loader, or to ``from_iterable`` to add operators.

    Example:
        ```python
        import asyncloader as al

        class Numbers(al.AsyncIterableDataset):
            async def __aiter__(self):
                for number in al.get_topology().split(range(1000)):
                    yield number  # after an await, say of a web service

        loader = al.DataLoader(Numbers(), batch_size=50)
        ```
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        raise TypeError(f"{type(self).__name__} should define __aiter__ as an asynchronous generator")


def from_iterable(
    make: Make | Callable[[], Iterable[Any] | AsyncIterable[Any]] | Iterable[Any] | AsyncIterable[Any],
) -> Dataset:
    """Make a dataset from iterables of your own, plain or asynchronous.

    Example:
        ```python
        import asyncloader as al

        dataset = al.from_iterable(lambda topology: topology.split(range(1000)))
        loader = al.DataLoader(dataset, batch_size=50)
        ```

    Args:
        make: One of these. A list, tuple or other sequence: each lane takes its part. A function of a
            ``Topology`` that returns the iterable of a lane, such as
            ``lambda topology: topology.split(range(1000))``. A function without a parameter, or an iterable
            object: with several lanes it must call ``get_topology()``. Meanwhile torch's worker info says
            worker 0 of 1, so that a library inside does not split the part of a lane again.

    Returns:
        The dataset, without operators. Nothing is iterated yet.

    Raises:
        TypeError: ``make`` is none of these, or can be iterated only once, such as a generator.
        RuntimeError: While iterating in several lanes: the function or object did not use its topology, so
            every lane would yield the same samples; or it used both the topology and torch's worker info, so
            samples might come twice or be lost.
    """
    if isinstance(make, Dataset):
        raise TypeError("from_iterable should get an iterable, but got a dataset: use that as it is")
    if isinstance(make, AsyncIterator) or (hasattr(make, "__next__") and not callable(make)):
        raise TypeError(
            f"from_iterable should get something that can be iterated in every epoch, but got "
            f"{type(make).__name__}, which can be iterated only once; pass a function that makes one"
        )
    if not callable(make) and not isinstance(make, Iterable | AsyncIterable):
        raise TypeError(
            "from_iterable should get an iterable or a function that makes one, "
            f"but got {type(make).__name__}"
        )
    return dataset_of(Iterables(make))


# --- datasets made of datasets: mixed, one after another, or side by side ---


def mix(
    components: Iterable[Dataset] | Mapping[str, Dataset],
    *,
    weights: Weights | Mapping[int, Weights] | Callable[[int], Weights] | None = None,
    seed: int = 0,
    stop: Stop = "first",
) -> Dataset:
    """Make a dataset that mixes the samples of others, which may have any source, format and operators.

    Each lane draws from its part of each component, by a schedule that depends only on (weights, seed, epoch,
    lane). At any time, the number of draws from a component in a lane differs by at most one sample from the
    share of its weight; with more than four components, by at most two.

    Example:
        ```python
        import asyncloader as al

        web, books = al.from_iterable(["web"] * 900), al.from_iterable(["books"] * 100)
        dataset = al.mix({"web": web, "books": books}, weights={"web": 3, "books": 1})
        print(dataset.head(8).count("books"))  # 2
        ```

    Args:
        components: The datasets, in a list or by names, which messages and statistics then use.
        weights: How often each is drawn, as numbers with any sum, in the order of the components or by their
            names. Weights that change: a mapping of epochs to the weights from that epoch on, such as
            ``{0: [1, 0], 3: [1, 1]}``, or a function of the epoch. A component with weight 0 is not read in
            that epoch. None: equal weights, whatever the sizes.
        seed: The seed of the schedule. 0 by default, so that runs can be repeated.
        stop: When a lane ends. A component that has no samples in the lane is always skipped.

            ``"first"``: as soon as the schedule draws a component that has ended. No sample comes twice and
            the weights hold to the end, so it is the default; the remaining samples of the others are left
            out. In a mixture with a finite component, a lane that only has samples of endless ones ends at
            the first draw of the finite one.

            ``"all"``: when all components have ended. The weights of the others apply once one has ended.
            Every sample comes once.

            ``"repeat"``: when every component was read to its end once. A component that ends earlier starts
            again, in a new order if it is shuffled, as with ``.repeat``. The weights hold to the end, and
            every sample comes at least once.

    Returns:
        The dataset.

    Raises:
        TypeError: A component is not a dataset, a name is not a string, ``seed`` is not an int, or
            ``weights`` are not numbers.
        ValueError: There is no component; ``weights`` are negative, all 0, or not one for each component; or
            ``stop`` is unknown.
    """
    names, parts = _named("mix", components)
    number = as_whole(seed)
    if number is None:
        raise TypeError(f"seed should be an int, but got seed={seed!r}")
    if stop not in get_args(Stop):
        raise ValueError(f"stop should be 'first', 'all' or 'repeat', but got stop={stop!r}")
    return dataset_of(Mixture(names, parts, EpochWeights(names, weights), number, stop))


def concat(components: Iterable[Dataset] | Mapping[str, Dataset]) -> Dataset:
    """Make a dataset of the samples of others, one dataset after another.

    Each lane reads its part of the first, then its part of the second, and so on.

    Args:
        components: The datasets, in a list or by names, which messages and statistics then use.

    Returns:
        The dataset.

    Raises:
        TypeError: A component is not a dataset, or a name is not a string.
        ValueError: There is no component.
    """
    return dataset_of(Concat(*_named("concat", components)))


def zip_datasets(components: Iterable[Dataset] | Mapping[str, Dataset], *, strict: bool = True) -> Dataset:
    """Make a dataset that joins the samples of others: the first of each to one sample, then the second.

    Shards at the same place in the lists of the components belong together: each component needs the same
    number of shards, with the same numbers of samples. Components that are shuffled with the same window and
    seed stay aligned. ``al.sample_rng()`` draws the same numbers for samples at the same place.

    Args:
        components: The datasets. With names, a sample is a dict with each component's sample under its
            name. In a list, a sample is a dict of the fields of all. They must have no field in common except
            ``__key__``, which must be equal, and ``__url__``; both are taken from the first component.
        strict: Raise if a component has more samples in a lane than another one. True by default, since
            components of unequal length are often paired wrongly. False: the shortest component ends the
            lane, and the remaining samples of the others are left out.

    Returns:
        The dataset.

    Raises:
        TypeError: A component is not a dataset, or a name is not a string. While iterating: a sample is not a
            mapping, and the components have no names.
        ValueError: There is no component. While iterating: with several lanes, the numbers of shards differ;
            with ``strict``, the lengths differ; components have fields in common, or keys differ.
    """
    names, parts = _named("zip_datasets", components)
    # Shards of the same place belong together, and so go to one lane, whatever an index knows of them.
    parts = tuple(map(_dealt_whole, parts))
    return dataset_of(Zipped(names, parts, isinstance(components, Mapping), bool(strict)))


def _named(
    what: str, components: Iterable[Dataset] | Mapping[str, Dataset]
) -> tuple[tuple[str, ...], tuple[Stages, ...]]:
    """The components and their names: their numbers if they have none."""
    if isinstance(components, Dataset) or not isinstance(components, Iterable):
        raise TypeError(
            f"{what} should get a list of datasets or a mapping of names to datasets, but got "
            f"{type(components).__name__}"
        )
    if isinstance(components, Mapping):
        named = dict(components)
    else:
        named = {str(number): dataset for number, dataset in enumerate(components)}
    if not named:
        raise ValueError(f"{what} should get at least one dataset, but got none")
    for name, dataset in named.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} should get names that are strings, but got {name!r}")
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"{what} should get datasets, as from_urls and from_iterable make them, but got "
                f"{type(dataset).__name__} for {name!r}"
            )
    return tuple(named), tuple(map(stages_of, named.values()))


def _dealt_whole(stages: Stages) -> Stages:
    source = stages.source
    if isinstance(source, Shards):
        return replace(stages, source=source.whole())
    if isinstance(source, Composed):
        return replace(stages, source=replace(source, parts=tuple(map(_dealt_whole, source.parts))))
    return stages
