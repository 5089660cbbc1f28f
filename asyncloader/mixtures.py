"""Datasets made of datasets: mixed, one after another, or side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import get_args

from .dataset import Dataset, dataset_of, recipe_of
from .plan.mixing import Stop
from .plan.weights import EpochWeights, Weights
from .quantity import as_whole
from .sources.components import Composed, Concat, Recipe
from .sources.mixture import Mixture
from .sources.shards import Shards
from .sources.zipped import Zipped

__all__ = ["concat", "mix", "zip_datasets"]


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
