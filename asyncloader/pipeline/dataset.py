"""The dataset: where samples come from and what is done to them. Frozen, picklable, does no I/O.

``from_urls`` and ``from_iterable`` (``recipes``) begin one; each operator gives a new one. A dataset is only
a description; the loader runs it, in as many lanes and processes as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from .components import Composed, Concat, Recipe
from .filter import Filter, FilterBatches, Rename, Select
from .lane import START, Lane, Services
from .map import AsyncMap, Map, MapBatches
from .mixture import Mixture
from .op import Op, Source, is_async
from .renamed import OPERATORS, missing
from .shards import Shards, open_survey
from .shuffle import Shuffle
from .take import Repeat, Take
from .zipped import Zipped

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


# Datasets made of datasets: mixed, one after another, or side by side.


def mix(
    components: Iterable[Dataset] | Mapping[str, Dataset],
    *,
    weights: Weights | Mapping[int, Weights] | Callable[[int], Weights] | None = None,
    seed: int = 0,
    stop: Stop = "first",
) -> Dataset:
    """A dataset that mixes the samples of others, which may be of any source, format and operators.

    Each lane draws from its part of each component, by a schedule that is a function of (weights, seed,
    epoch, lane) alone. After any number of draws in a lane each of up to four components is within one sample
    of its weight's part, of more of them within two.

    Args:
        components: The datasets, in a list, or by the names that messages and statistics call them.
        weights: How often each is drawn, as numbers whose sum does not matter: in the order of the components
            or by their names. They may change from epoch to epoch: then a mapping of epochs to weights that
            count from that epoch on, as in ``{0: [1, 0], 3: [1, 1]}``, or a function of the epoch. A
            component with weight 0 is not read in that epoch. None: all equal, whatever their sizes.
        seed: Draws the schedule. 0, so that a run can be repeated without anybody having thought of it.
        stop: When a lane ends. A component of which the lane has nothing is passed over in each case, and the
            weights of the others count among themselves.

            ``"first"``: when a component is due that has run dry; or when all that the lane has are endless
            and others are not. No sample comes twice and the weights hold to the end, at the price of those
            that are left over. The default, since it changes nothing unasked.

            ``"all"``: when all have run dry. One that has is left out, and the weights of the others count
            among themselves: every sample once.

            ``"repeat"``: when every component was read once to its end. Until then one that has run dry
            begins anew, shuffled anew, as ``.repeat`` does: the weights hold to the end and every sample
            comes.

    Raises:
        TypeError: A component is no dataset, a name no string, ``seed`` no int, or ``weights`` hold something
            else than numbers.
        ValueError: No component; ``weights`` that are negative, all 0, or not one for each component; or an
            unknown ``stop``.
    """
    names, recipes = _named("mix", components)
    number = as_whole(seed)
    if number is None:
        raise TypeError(f"seed should be an int, but got seed={seed!r}")
    if stop not in get_args(Stop):
        raise ValueError(f"stop should be 'first', 'all' or 'repeat', but got stop={stop!r}")
    return dataset_of(Mixture(names, recipes, EpochWeights(names, weights), number, stop))


def concat(components: Iterable[Dataset] | Mapping[str, Dataset]) -> Dataset:
    """A dataset of the samples of others, one after another: in each lane all that it has of the first, then
    all that it has of the second, and so on.

    Args:
        components: The datasets, in a list, or by the names that messages and statistics call them.

    Raises:
        TypeError: A component is no dataset, or a name no string.
        ValueError: No component.
    """
    return dataset_of(Concat(*_named("concat", components)))


def zip_datasets(components: Iterable[Dataset] | Mapping[str, Dataset], *, strict: bool = True) -> Dataset:
    """A dataset whose samples are made of a sample of each of others: the first of each, the second of each,
    ...

    Lanes are dealt the shards of all components alike, so shards of the same place in their lists belong
    together: give as many of each, with as many samples. Components that are shuffled with the same window
    and seed stay side by side, and ``al.sample_rng()`` draws alike for the samples of one place in all of
    them.

    Args:
        components: The datasets: by names, then a sample is a dict with each component's sample under its
            name; or in a list, then it is a dict of the fields of all, which must have none in common but
            ``__key__`` and ``__url__``. Those are the first one's; keys must be equal.
        strict: Whether it is an error that a component has more samples in a lane than another one. False:
            the one that ends first ends the lane, and the rest of the others is left out. True, so that
            nothing is lost unasked: components of unequal length were often not put together as was meant.

    Raises:
        TypeError: A component is no dataset, or a name no string. While iterating: samples are no mappings,
            and the components have no names.
        ValueError: No component. While iterating: unequal numbers of shards in several lanes; unequal
            lengths, if ``strict``; fields in common; keys that differ.
    """
    names, recipes = _named("zip_datasets", components)
    # Shards of the same place belong together, and so go to one lane, whatever an index knows of them.
    recipes = tuple(map(_dealt_whole, recipes))
    return dataset_of(Zipped(names, recipes, isinstance(components, Mapping), bool(strict)))


def _named(
    what: str, components: Iterable[Dataset] | Mapping[str, Dataset]
) -> tuple[tuple[str, ...], tuple[Recipe, ...]]:
    """The components and their names: their numbers if they have none."""
    if isinstance(components, Dataset) or not isinstance(components, Iterable):
        raise TypeError(
            f"{what} should get a list of datasets or a mapping of names to datasets, but got "
            f"{type(components).__name__}"
        )
    if isinstance(components, Mapping):
        recipes = dict(components)
    else:
        recipes = {str(number): recipe for number, recipe in enumerate(components)}
    if not recipes:
        raise ValueError(f"{what} should get at least one dataset, but got none")
    for name, recipe in recipes.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} should get names that are strings, but got {name!r}")
        if not isinstance(recipe, Dataset):
            raise TypeError(
                f"{what} should get datasets, as from_urls and from_iterable make them, but got "
                f"{type(recipe).__name__} for {name!r}"
            )
    return tuple(recipes), tuple(map(recipe_of, recipes.values()))


def _dealt_whole(recipe: Recipe) -> Recipe:
    source = recipe.source
    if isinstance(source, Shards):
        return replace(recipe, source=source.whole())
    if isinstance(source, Composed):
        return replace(recipe, source=replace(source, recipes=tuple(map(_dealt_whole, source.recipes))))
    return recipe
