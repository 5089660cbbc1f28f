"""Which shards a recipe is of: names expanded, buckets looked into once, formats told, manifests found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .formats import check_format
from .manifest.entries import Expected
from .manifest.lookup import (
    expectations,
    find_local_manifests,
    is_found_manifest,
    look_up,
    read_local_manifest,
)
from .shard_names import check_names, check_prefix, formats_of, is_shard_name
from .stores.globs import folder_before
from .stores.listing.asking import Listing, look
from .stores.options import check_storage_options
from .stores.policy import NetworkPolicy
from .stores.urls import (
    MANIFEST_NAME,
    expand_urls,
    is_remote_pattern,
    local_path,
    scheme_of,
    split_key,
)

__all__ = ["Catalog", "make_catalog"]


@dataclass(frozen=True)
class Catalog:
    """The shards of a recipe.

    Attributes:
        urls: In order.
        formats: The format of each.
        checks: What a manifest expects of each, None where none does; empty if none was found.
    """

    urls: tuple[str, ...]
    formats: tuple[str, ...]
    checks: tuple[Expected | None, ...]


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
        StoreError: A server cannot be asked, or a manifest not be read.
    """
    if format is not None:
        check_format(format)
    if manifest is not None and not isinstance(manifest, str | os.PathLike):
        raise TypeError(f"manifest should be a URL or path, but got {type(manifest).__name__}")
    where = None if manifest is None else os.fspath(manifest)
    is_shard, check_folder = partial(is_shard_name, format=format), partial(check_prefix, format=format)
    names = expand_urls(urls, is_shard, check_folder)
    check_names(names)
    check_storage_options({scheme_of(name) for name in (*names, *([where] if where else []))}, options)
    patterns = [name for name in names if is_remote_pattern(name)]
    far = [where] if where is not None and scheme_of(where) != "file" else []
    seen = look(patterns, options, is_shard, network=network, manifests=where is None, fetch=far)
    for listing in seen.listings:
        if listing.pattern.endswith("/"):
            check_folder(listing.pattern, listing.urls)
    shards = seen.in_place(names)
    formats = formats_of(shards, format)
    if where is None:
        return Catalog(shards, formats, _found_beside(shards, seen.listings))
    content = seen.fetched[0] if far else read_local_manifest(local_path(where))
    if content is None:
        raise ValueError(f"there is no manifest {where!r}; python -m asyncloader.manifest makes one")
    return Catalog(shards, formats, expectations(shards, where, content))


def _found_beside(shards: Sequence[str], listings: Sequence[Listing]) -> tuple[Expected | None, ...]:
    """What manifests expect that lie where shards were looked for: local folders, and folders listed."""
    found = dict(zip(shards, find_local_manifests(shards), strict=False))
    for listing in listings:
        if listing.manifest is not None:
            root, key = split_key(listing.pattern)
            place = root + folder_before(key) + MANIFEST_NAME
            if is_found_manifest(place, listing.manifest):
                found.update(zip(listing.urls, look_up(listing.urls, place, listing.manifest), strict=True))
    return tuple(found.get(url) for url in shards) if any(found.values()) else ()
