"""Finding shards: names checked and expanded, and what folders, prefixes and globs mean asked for once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .shard_names import check_names, check_prefix, is_shard_name
from .stores.expanding import IsShard, Match, RemotePattern, expand_urls, read_urls
from .stores.listing.asking import Listing, look
from .stores.names import Part, ShardNames
from .stores.options import check_storage_options
from .stores.policy import NetworkPolicy
from .stores.schemes import Scheme
from .stores.urls import scheme_of

__all__ = ["Found", "IsShard", "find_shards"]


@dataclass(frozen=True)
class Found:
    """What the user's names have come to.

    Attributes:
        names: The shards, in order.
        matches: What each folder, prefix and glob has.
        listings: The same of servers, with their manifests.
        schemes: Of all names.
        fetched: The contents of what was to be fetched with them.
        lengths: Length in bytes of each shard of each part of ``names``, as far as a listing has told it.
    """

    names: ShardNames = field(repr=False)
    matches: tuple[Match, ...]
    listings: tuple[Listing, ...]
    schemes: frozenset[Scheme]
    fetched: tuple[bytes, ...] = field(repr=False)
    lengths: tuple[Sequence[int] | None, ...] = field(repr=False)


def find_shards(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None,
    options: Mapping[str, Any],
    network: NetworkPolicy | None = None,
    *,
    manifests: bool = False,
    fetch: Sequence[str] = (),
) -> Found:
    """Find the shards; servers are asked only about prefixes and globs, and for what is to be fetched.

    Args:
        urls: As the user names them.
        format: What the user says all of them are; None to go by the suffixes.
        options: Storage options.
        network: Time-outs and attempts of listings.
        manifests: Fetch the manifests that lie in prefixes and beside the matches of globs.
        fetch: URLs of small objects to fetch.

    Raises:
        TypeError: Something else than strings and paths, or an option of a wrong type.
        ValueError: No shard, or names and options that do not fit.
        StoreError: A server cannot be asked.
    """
    is_shard, check_folder = partial(is_shard_name, format=format), partial(check_prefix, format=format)
    patterns = read_urls(urls)
    check_names(patterns)
    expanded = expand_urls(patterns, is_shard, check_folder)
    check_storage_options({*expanded.schemes, *map(scheme_of, fetch)}, options)
    asked = [part.pattern for part in expanded.parts if isinstance(part, RemotePattern)]
    seen = look(asked, options, is_shard, network=network, manifests=manifests, fetch=fetch)
    for listing in seen.listings:
        if listing.pattern.endswith("/"):
            check_folder(listing.pattern, listing.urls)
    listings = iter(seen.listings)
    parts: list[Part] = []
    lengths: list[Sequence[int] | None] = []
    for part in expanded.parts:
        if isinstance(part, RemotePattern):
            listing = next(listings)
            parts.append(tuple(listing.urls))
            lengths.append([shard.size for shard in listing.shards])
        else:
            parts.append(part)
            lengths.append(None)
    matches = [Match(listing.pattern, listing.urls) for listing in seen.listings]
    return Found(
        ShardNames(parts),
        (*expanded.matches, *matches),
        seen.listings,
        expanded.schemes,
        seen.fetched,
        tuple(lengths),
    )
