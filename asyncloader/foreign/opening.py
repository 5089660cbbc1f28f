"""Recipes by the name of a format: of shards that are named, or of a folder whose index names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from ..catalog import BESIDE
from ..dataset import Dataset
from ..formats import columns_of_all
from ..recipes import from_urls
from ..sources.shards import Shards
from ..stores.expanding import read_urls
from .litdata import from_litdata
from .mds import from_mds

__all__ = ["is_folder", "open_recipe", "open_shards"]

Urls: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

#: By format: what reads a folder of it by its ``index.json``.
_FOLDERS: Mapping[str | None, Callable[..., Dataset]] = MappingProxyType(
    {"mds": from_mds, "litdata": from_litdata}
)


def is_folder(format: str | None, block_size: int | None) -> bool:
    """Whether one URL names all shards of this format: that of the folder with their index.

    Raises:
        ValueError: ``block_size`` is for LitData's chunks alone.
    """
    if block_size is not None and format != "litdata":
        raise ValueError("block_size (--block-size) is for LitData's chunks of tokens: name format 'litdata'")
    return format in _FOLDERS


def open_shards(urls: Urls, format: str | None, **options: Any) -> Shards:
    """What such a recipe begins with, for those who do something else with it; as ``open_recipe``."""
    source = open_recipe(urls, format, **options).source
    assert isinstance(source, Shards), "it begins with shards"
    return source


def open_recipe(
    urls: Urls,
    format: str | None,
    *,
    block_size: int | None = None,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
    decode: bool = False,
    index: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Dataset:
    """The recipe of the shards that are named.

    Args:
        urls: As ``from_urls`` takes them; of MDS and LitData, if they are named, the folder of all shards.
        format: None to go by the suffixes.
        block_size: Tokens of a sample, of LitData's chunks that hold such.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        columns: Names of the fields that are wanted; None for all. No others are read where all formats can
            do so; elsewhere these are picked from the samples.
        decode: Whether images become such while shards are read, where a format does that.
        index: Where it is, if it is not to be found as ``from_urls`` finds it.
        options: Others that all of these recipes take.

    Raises:
        ValueError: Several URLs, or an index, where there is one folder; ``block_size`` for another format.
        Exception: What ``from_urls``, ``from_mds`` and ``from_litdata`` raise.
    """
    if is_folder(format, block_size):
        if delimiter is not None:
            raise ValueError(f"delimiter is what separates the fields of CSV, and format {format!r} has none")
        root = _the_one(read_urls(urls), format, index)
        if block_size is not None:
            options["block_size"] = block_size
        return _FOLDERS[format](root, columns=columns, decode=decode, **options)
    place = BESIDE if index is None else index
    recipe = from_urls(urls, format=format, delimiter=delimiter, index=place, **options)
    assert isinstance(recipe.source, Shards), "it begins with shards"
    selection = columns_of_all(columns, recipe.source.formats)
    recipe = Dataset(replace(recipe.source, selection=replace(selection, decode=decode)))
    return recipe if columns is None or selection.columns is not None else recipe.select(*columns)


def _the_one(names: Sequence[str], format: str | None, index: object) -> str:
    """The folder of all shards.

    Raises:
        ValueError: There are several, or an index beside its index.
    """
    if len(names) > 1:
        raise ValueError(
            f"format {format!r} takes one URL, that of the folder with the index.json, but got {len(names)}; "
            "shards that are named one by one tell their format by their suffixes"
        )
    if index is not None:
        raise ValueError(
            f"an index is for shards without an index.json, and format {format!r} is of those with one: "
            "leave it out"
        )
    return names[0]
