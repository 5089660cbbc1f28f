"""Recipes of the data sets that MosaicML's ``streaming`` writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..dataset import Dataset
from ..digest import ALGORITHMS, open_digest
from ..errors import FormatError
from ..formats.columnar.selection import make_selection
from ..formats.mds.index import IndexedFile, IndexedShard, parse_index
from ..index.check import FolderIndex
from ..index.expectations import Expectations, Expected
from ..recipes import make_access
from ..sources.shards import Shards
from ..stores.access import Renew
from ..stores.names import RunLengths
from ..stores.policy import NetworkPolicy
from ..types import Unpacked
from .folder import opened_index

__all__ = ["from_mds"]


def from_mds(
    root: str | os.PathLike[str],
    *,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    decode: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """A recipe that streams a data set of MDS as it is, which MosaicML's ``streaming`` has written.

    Its ``index.json`` is read now, once; of servers in a process of its own. It tells how many samples each
    shard has, so that lanes are cut equal to the sample and lengths are known, and what the shards should be,
    against which they are checked: their lengths, and where a whole shard is read, a digest. Samples come in
    the order of the shards, and are what ``streaming`` makes of them, value for value.

    Args:
        root: The folder with the index, a URL or a path as ``from_urls`` takes them, without braces and
            globs. Several of them (streams) are recipes of their own, which ``concat`` and ``mix`` join.
        split: A folder below it, as ``streaming`` has it: ``"train"``.
        columns: Names of those that become fields, in this order; values of others are not decoded. None, the
            default, takes all.
        decode: Open images. False leaves the bytes of those that are files (``jpeg``, ``png``), and lists of
            them, to be decoded by a ``.map`` of yours or kept as they are; ``pil`` has pixels alone, and
            stays an image.
        storage_options: As of ``from_urls``, and so are the others.
        network: Time-outs, retries and hedging.
        renew: For signed URLs that expire; not called for the index, which is read now.
        cache_dir: Keep shards of servers in this folder.
        cache_limit: Most bytes kept there.

    Raises:
        TypeError: An option is of a wrong type.
        ValueError: No index in a local folder, no shard in it, an unknown scheme or storage option, a folder
            that cannot hold a cache, or ``renew`` where shards are not behind http(s).
        StoreError: The index cannot be read.
        FormatError: The index is not sound, of another version, of shards that are no MDS, in an encoding or
            compression that is not known; or a column that is wanted is a pickle, which is not read, or not
            there.
    """
    selection = replace(make_selection(columns, None), decode=decode)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)
    with opened_index(root, split, access, "mds") as (folder, content):
        shards = [*parse_index(content, selection, folder.has if folder.is_local else None)]
        names = folder.shards_of(shard.file.basename for shard in shards)
        expected = Expectations.of(map(_expected, shards))
    formats = RunLengths.of(shard.format for shard in shards)
    return Dataset(Shards(names, formats, access, expected, selection, index=FolderIndex(folder.index_url)))


def _expected(shard: IndexedShard) -> Expected:
    digest, raw, unpacked = _digest_of(shard.file), shard.raw, None
    if raw is not None:
        # Bytes that are right become what is right.
        unpacked = Unpacked(raw.size_bytes, _digest_of(raw) if digest is None else None)
    return Expected(shard.file.size_bytes, shard.samples, offsets=(), hashed=digest, unpacked=unpacked)


def _digest_of(file: IndexedFile) -> tuple[str, bytes] | None:
    """The cheapest digest that can be computed here; None where the index has none that is known."""
    known = [name for name in ALGORITHMS if name in file.hashes]
    if not known:
        return None
    name = next(filter(open_digest, known), known[0])
    text = file.hashes[name]
    try:
        if 0 < len(text) <= _MOST_DIGITS:
            return name, bytes.fromhex(text)
    except ValueError:
        pass
    raise FormatError(
        f"index: {file.basename[:80]!r}: the {name} should be hexadecimal digits, found {text[:80]!r}"
    )


# Of sha512, and no digest here has more.
_MOST_DIGITS = 128
