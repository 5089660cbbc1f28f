"""The shards that a command line names, and their recipe."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..dataset import Dataset
from ..foreign import folders as opening
from ..sources.shards import Shards
from .arguments import columns_of, storage_options

__all__ = ["open_recipe", "open_shards", "told_of_fields"]


def open_recipe(asked: argparse.Namespace, **options: Any) -> Dataset:
    """The recipe of the shards that were asked for, of the fields that are wanted.

    Args:
        asked: With the arguments of ``add_shards`` and ``add_columns``.
        options: Others of ``opening.open_recipe``.

    Raises:
        ValueError: Something that a recipe does not take, or columns that are no list of names.
        OSError: A server cannot be asked for a listing, or an index not be read.
    """
    return opening.open_recipe(
        asked.urls, asked.format, columns=columns_of(asked), **_given(asked), **options
    )


def open_shards(asked: argparse.Namespace, **options: Any) -> Shards:
    """The same of all fields, as the shards that a recipe begins with."""
    return opening.open_shards(asked.urls, asked.format, **_given(asked), **options)


def _given(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "block_size": asked.block_size,
        "delimiter": asked.delimiter,
        "storage_options": storage_options(asked),
    }


@contextmanager
def told_of_fields() -> Iterator[None]:
    """A field that is not there is a wrong call, whose message names those that are."""
    try:
        yield
    except KeyError as error:
        raise ValueError(*error.args) from None
