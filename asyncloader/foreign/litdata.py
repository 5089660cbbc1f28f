"""Recipes that begin with LitData's chunks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..dataset import Dataset
from ..formats.columnar.selection import make_selection
from ..formats.litdata import Index, decoder_of, parse_index
from ..index.check import FOREIGN_INDEX, OLDER_FOREIGN_INDEX, FolderIndex
from ..index.expectations import Expectations, Expected
from ..quantity import as_count
from ..recipes import make_access
from ..sources.shards import Shards
from ..stores.access import Renew
from ..stores.names import RunLengths
from ..stores.policy import NetworkPolicy
from .folder import opened_index

__all__ = ["from_litdata"]


def from_litdata(
    root: str | os.PathLike[str],
    *,
    block_size: int | None = None,
    columns: Iterable[str] | None = None,
    decode: bool = True,
    concurrency: int = 1,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """A recipe that streams the samples of chunks that LitData's ``optimize`` has written.

    Its ``index.json`` is read now, once; it tells the chunks, how many samples each has, and what they are,
    so that ``len(loader)`` is exact and lanes are of equal length. A sample is a dict: theirs, where it was
    one; of a list or tuple with the keys ``"0"``, ``"1"`` and so on; of any other value with the key
    ``"value"``; a block of tokens with the key ``"tokens"``. Arrays and tensors are NumPy arrays of the
    shapes and dtypes that were written, of which the loader makes tensors; Pillow's images are such.

    Args:
        root: URL or path of the folder with ``index.json``, of any scheme that ``from_urls`` knows.
        block_size: How many tokens make a sample, of chunks written for ``TokensLoader``, and only of those:
            ``tokens`` is then an array ``(block_size,)``. What is left at the end of a chunk is left out, as
            by LitData.
        columns: Names of the fields that samples are to have, in this order; the values of others are not
            looked at. None, the default, takes all.
        decode: Make arrays of images: ``jpeg`` and ``image`` become ``(3, H, W) uint8`` in RGB, turned as
            their Exif says, ``jpeg_array`` a list of such, TIFF what ``tifffile`` makes of it. False leaves
            the bytes of their files, to be decoded by a ``.map`` of yours.
        concurrency: How many samples at a time have images decoded, in each lane, on threads. 1, as in
            ``.map``.
        storage_options: As of ``from_urls``.
        network: As of ``from_urls``.
        renew: As of ``from_urls``.
        cache_dir: As of ``from_urls``.
        cache_limit: As of ``from_urls``.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: ``concurrency`` is below 1; ``block_size`` is missing where chunks hold tokens, or given
            where they do not; a column that samples do not have; no index in a local folder, no chunk in it,
            an unknown scheme or storage option, or a folder that cannot hold a cache.
        ImportError: While iterating: a package that decodes is not installed.
        StoreError: The index cannot be read.
        FormatError: The index is not sound; or the chunks are encrypted, hold pickles or values of
            serializers that are not known, or are made for another item loader. The message says what to do.
    """
    selection = make_selection(columns, None)
    concurrency = as_count("concurrency", concurrency)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)
    if block_size is not None:
        block_size = as_count("block_size", block_size)
    with opened_index(root, None, access, "litdata") as (folder, content):
        index = parse_index(content, block_size)
        names = folder.shards_of(chunk.name for chunk in index.chunks)
    schema = index.schema
    schema.check_columns(selection.columns)
    formats = RunLengths([("litdata", len(names))])
    told = FolderIndex(
        folder.index_url, schema, OLDER_FOREIGN_INDEX if schema.may_be_older else FOREIGN_INDEX
    )
    shards = Shards(names, formats, access, _checks(index), selection, index=told)
    media = decoder_of(schema.tree, schema.leaves, selection.columns) if decode else None
    return Dataset(shards) if media is None else Dataset(shards).map(media, concurrency=concurrency)


def _checks(index: Index) -> Expectations:
    """What is expected of the chunks. They have no offsets of their own: a plan finds any sample."""
    return Expectations.of(
        Expected(chunk.size_bytes, chunk.samples, offsets=(), unpacked=chunk.unpacked)
        for chunk in index.chunks
    )
