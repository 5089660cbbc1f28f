"""The recipe that a command line describes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..dataset import Dataset
from ..formats import columns_of_all
from ..formats.columnar.selection import EVERYTHING
from ..recipes import from_urls
from ..sources.shards import Shards
from .arguments import columns_of, storage_options

__all__ = ["open_recipe", "told_of_fields"]


def open_recipe(asked: argparse.Namespace, **options: Any) -> Dataset:
    """The recipe of the shards that were asked for, of the fields that are wanted.

    Args:
        asked: With the arguments of ``add_shards`` and ``add_columns``.
        options: Others of ``from_urls``.

    Raises:
        ValueError: Something that ``from_urls`` does not take, or columns that are no list of names.
        OSError: A server cannot be asked for a listing.
    """
    recipe = from_urls(asked.urls, format=asked.format, storage_options=storage_options(asked), **options)
    names = columns_of(asked)
    if names is None:
        return recipe
    source = recipe.source
    assert isinstance(source, Shards)
    selection = columns_of_all(names, source.formats)
    if selection is EVERYTHING:
        return recipe.select(*names)
    return replace(recipe, source=replace(source, selection=selection))


@contextmanager
def told_of_fields() -> Iterator[None]:
    """A field that is not there is a wrong call, whose message names those that are."""
    try:
        yield
    except KeyError as error:
        raise ValueError(*error.args) from None
