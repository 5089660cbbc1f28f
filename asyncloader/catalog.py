"""Which shards a recipe is of: found, their formats told, and held against the manifests that are known."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .formats import check_format
from .manifest.expectations import Expectations
from .manifest.lookup import (
    Entries,
    LocalManifests,
    check_complete,
    expectations,
    find_local_manifests,
    is_found_manifest,
    open_local_manifest,
)
from .shard_names import formats_of, is_shard_name
from .shard_search import Found, IsShard, find_shards
from .stores.expanding import Match, expand_home
from .stores.globs import folder_before
from .stores.names import ShardNames
from .stores.policy import NetworkPolicy
from .stores.schemes import Scheme
from .stores.urls import MANIFEST_NAME, local_path, scheme_of, split_key

__all__ = ["Catalog", "make_catalog"]


@dataclass(frozen=True)
class Catalog:
    """The shards of a recipe.

    Attributes:
        urls: In order.
        formats: The format of each.
        checks: What a manifest expects of each; empty if none was found.
        schemes: Of all URLs.
    """

    urls: ShardNames
    formats: Sequence[str]
    checks: Expectations
    schemes: frozenset[Scheme]


def make_catalog(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None,
    manifest: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    network: NetworkPolicy,
) -> Catalog:
    """Find the shards; looks at local disk, and asks servers only about prefixes, globs and manifests.

    Args:
        urls: As the user names them.
        format: None to go by the suffix.
        manifest: Where it is; None to use those that lie beside shards which are looked for anyway.
        options: Storage options.
        network: Time-outs and attempts of listings.

    Raises:
        TypeError: Something else than strings and paths, or an option of a wrong type.
        ValueError: No shard, or names, formats, options or a manifest that do not fit.
        FormatError: A manifest is not sound.
        StoreError: A server cannot be asked, or a manifest not be read, or a folder, prefix or glob lacks
            shards that its manifest lists.
    """
    if format is not None:
        check_format(format)
    if manifest is not None and not isinstance(manifest, str | os.PathLike):
        raise TypeError(f"manifest should be a URL or path, but got {type(manifest).__name__}")
    where = None if manifest is None else expand_home(os.fspath(manifest))
    far = [where] if where is not None and not scheme_of(where).is_local else []
    found = find_shards(urls, format, options, network, manifests=where is None, fetch=far)
    formats = formats_of(found.names, format)
    is_shard = partial(is_shard_name, format=format)
    if where is None:
        checks = _found_beside(found, is_shard)
    else:
        with (
            nullcontext(io.BytesIO(found.fetched[0]))
            if far
            else open_local_manifest(local_path(where)) as file
        ):
            if file is None:
                raise ValueError(f"there is no manifest {where!r}; asyncloader index makes one")
            entries = Entries(where, file)
        checks = expectations(found.names, entries)
        for match in found.matches:
            check_complete(entries, match, is_shard)
    return Catalog(found.names, formats, checks, found.schemes)


def _found_beside(found: Found, is_shard: IsShard) -> Expectations:
    """What manifests expect that lie where shards were looked for: local folders, and folders listed."""
    local = LocalManifests()
    any_local = any(scheme.is_local for scheme in found.schemes)
    expected = find_local_manifests(found.names, local) if any_local else Expectations.of()
    for match in found.matches:
        for path in match.manifests:
            if (entries := local.at(path)) is not None:
                check_complete(entries, match, is_shard)
    told = [(np.arange(len(expected)), expected)]
    for listing in found.listings:
        if listing.manifest is not None:
            root, key = split_key(listing.pattern)
            place = root + folder_before(key) + MANIFEST_NAME
            manifest = io.BytesIO(listing.manifest)
            if is_found_manifest(place, manifest):
                entries = Entries(place, manifest)
                check_complete(entries, Match(listing.pattern, listing.urls), is_shard)
                listed = {*listing.urls}
                numbers = [number for number, name in enumerate(found.names) if name in listed]
                told.append((np.array(numbers), entries.of(found.names[number] for number in numbers)))
    return Expectations.placed(len(found.names), told)
