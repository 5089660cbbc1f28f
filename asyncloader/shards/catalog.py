"""Find the shards of a dataset, their formats, and the indexes that describe them."""

from __future__ import annotations

import io
import json
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import StoreError, drop_frames
from ..stores.expanding import IsShard, expand_home
from ..stores.globs import folder_before
from ..stores.local import length_of
from ..stores.names import Braces, ShardNames, shared_folder
from ..stores.store import Access, NetworkPolicy
from ..stores.urls import INDEX_NAME, Scheme, local_path, redact, scheme_of, split_key
from . import index_lookup
from .expectations import Expectations, Known
from .index_entries import MOST_LOOKED_AT_BYTES, is_index
from .index_survey import open_survey
from .names import FoundShards, find_shards, formats_of, is_shard_name


class Beside(Enum):
    """Where to look for an index by default."""

    SHARDS = "beside the shards"


#: The index that lies beside the shards, if there is one.
BESIDE: Final = Beside.SHARDS

IndexPlace: TypeAlias = str | os.PathLike[str] | Beside | None
"""Where an index is; None to use none."""

# Temporary answers. Any other 4xx means that there is no index for this client.
_NO_ANSWER = frozenset({408, 425, 429})

# Local files whose lengths are looked up: some 20 ms of disk, and up to 5 s of a slow network file system.
_MOST_LOOKED_UP = 10_000


@dataclass(frozen=True)
class Catalog:
    """The shards of a dataset.

    Attributes:
        urls: In order.
        formats: The format of each.
        checks: What an index expects of each; empty if none was found.
        sizes: Length of each in bytes, ``(shards,) int64``; None unless all are known.
        lacking: Why no index has the number of samples of each, and what to do; empty if one has.
    """

    urls: ShardNames
    formats: Sequence[str]
    checks: Expectations
    sizes: npt.NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    lacking: str = field(default="", repr=False)


def make_catalog(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None,
    index: IndexPlace,
    options: Mapping[str, Any],
    network: NetworkPolicy,
    check: Callable[[Sequence[str], frozenset[Scheme]], object] = lambda *_: None,
) -> Catalog:
    """Find the shards. Reads local disk, and requests prefixes, globs and indexes from servers.

    Args:
        urls: As the user names them.
        format: The format of all; None to use the suffixes.
        index: Where it is; ``BESIDE`` for those beside local shards, in folders that are listed anyway, and
            in the one folder of shards of a web server; None for none.
        options: Storage options.
        network: Time-outs and attempts.
        check: Called with the formats of the shards and all schemes, before any request to a web server.

    Raises:
        TypeError: Something else than strings and paths, or an option of a wrong type.
        ValueError: No shard, or names, formats, options or an index that do not fit.
        FormatError: An index is not sound.
        StoreError: A request failed, an index cannot be read, or a folder, prefix or glob lacks shards that
            its index lists.
    """
    if not isinstance(index, str | os.PathLike | Beside | None):
        raise TypeError(f"index should be a URL or path, but got {type(index).__name__}")
    where = expand_home(os.fspath(index)) if isinstance(index, str | os.PathLike) else index
    far = [where] if isinstance(where, str) and not scheme_of(where).is_local else []
    found = find_shards(urls, format, options, network, indexes=where is BESIDE, fetch=far)
    formats = formats_of(found.names, format)
    check(formats, found.schemes)
    is_shard = partial(is_shard_name, format=format)
    checks, web = Expectations.of(), None
    if isinstance(where, Beside):
        web = _web_place(found)
        beside = None if web is None else _read_web(web, found, options, network)
        checks = _found_beside(found, is_shard, beside)
    elif where is not None:
        entries = (
            index_lookup.Entries(where, found.fetched[0])
            if far
            else index_lookup.read_entries(where, options)
        )
        checks = index_lookup.expectations(found.names, entries)
        for match in found.matches:
            index_lookup.check_complete(entries, match, is_shard)
    sizes, lacking = _sizes(found, checks), _lacking(found, checks, where, web)
    return Catalog(found.names, formats, checks, sizes, lacking)


def _sizes(found: FoundShards, checks: Expectations) -> npt.NDArray[np.int64] | None:
    """The lengths of shards from indexes, listings and the local disk, in this order; None if one is unknown.

    Makes no request to a server.
    """
    sizes = np.full(len(found.names), -1, np.int64)
    first = 0
    for part, lengths in zip(found.names.parts, found.lengths, strict=True):
        if lengths is not None:
            sizes[first : first + len(part)] = lengths
        first += len(part)
    if checks:
        known = checks.known & (Known.ENTRY | Known.NO_SIZE) == Known.ENTRY
        sizes[known] = checks.size_bytes[known]
    unknown = np.flatnonzero(sizes < 0).tolist()
    if len(unknown) > _MOST_LOOKED_UP or (unknown and not any(scheme.is_local for scheme in found.schemes)):
        return None
    for number in unknown:  # up to the first one whose length is unknown
        name = found.names[number]
        length = length_of(name) if scheme_of(name).is_local else None
        if length is None:
            return None
        sizes[number] = length
    return sizes


def _found_beside(found: FoundShards, is_shard: IsShard, web: index_lookup.Entries | None) -> Expectations:
    """What the indexes beside shards expect: in local folders, in listings, and on a web server."""
    read = cache(index_lookup.local_entries)
    any_local = any(scheme.is_local for scheme in found.schemes)
    expected = index_lookup.find_local_indexes(found.names, read) if any_local else Expectations.of()
    for match in found.matches:
        for path in match.indexes:
            if (entries := read(path)) is not None:
                index_lookup.check_complete(entries, match, is_shard)
    told = [(np.arange(len(expected)), expected)]
    for match in found.matches:
        if match.index is not None:
            place = _listed_place(match.pattern)
            if (entries := index_lookup.found_entries(place, io.BytesIO(match.index))) is not None:
                index_lookup.check_complete(entries, match, is_shard)
                listed = {*match.urls}
                numbers = [number for number, name in enumerate(found.names) if name in listed]
                told.append((np.array(numbers), entries.of(found.names[number] for number in numbers)))
    if web is not None:
        there = web.of(found.names)
        # Others may be in another store, and known already.
        listed_there = np.flatnonzero(there.known)
        told.append((listed_there, there.take(listed_there)))
    return Expectations.placed(len(found.names), told)


def _listed_place(pattern: str) -> str:
    """Where the index of a prefix or glob lies."""
    root, key = split_key(pattern)
    return root + folder_before(key) + INDEX_NAME


def _web_place(found: FoundShards) -> str | None:
    """Where one index would lie beside all shards of web servers: in the folder that they have in common.

    None if they have none, or if a query follows their names: it may be a signature of one name, or select
    what is served.
    """
    is_all = all(scheme.is_web for scheme in found.schemes)
    heads: list[str] = []  # up to the braces
    for part in found.names.parts:
        names: Sequence[str] = part
        if isinstance(part, Braces):
            names = [part.pattern] if scheme_of(part[0]).is_web else []
        elif not is_all:
            names = [name for name in part if scheme_of(name).is_web]
        if any("?" in name or "#" in name for name in names):
            return None
        if names:  # all between these two share their common prefix
            heads += (end.partition("{")[0] for end in (min(names), max(names)))
    folder = shared_folder(heads) if heads else ""
    return folder + INDEX_NAME if folder.count("/") > 2 else None


def _read_web(
    place: str, found: FoundShards, options: Mapping[str, Any], network: NetworkPolicy
) -> index_lookup.Entries | None:
    """The index of these shards that a web server has there; None if it has none.

    Raises:
        FormatError: It is not sound.
        StoreError: The server gave no answer. Continuing without an index is unsafe: if only some ranks
            found it, ranks would read different samples.
    """
    try:
        with open_survey(Access(options, network), 1) as (survey, _):
            content = survey.read(place)
    except StoreError as error:
        if error.status is not None and 400 <= error.status < 500 and error.status not in _NO_ANSWER:
            return None
        if error.status is None:  # the server itself is out of reach, so the shards are too
            error.shard = redact(next(name for name in found.names.examples if scheme_of(name).is_web))
        error.add_note(
            f"the index {redact(place)} was looked for beside the shards; from_urls(..., index=None) does "
            "not look for it"
        )
        drop_frames(error)
        raise
    # Some servers send a page, or JSON of their own, for every missing file.
    if content.removeprefix(BOM_UTF8).lstrip()[:1] == b"<":
        return None
    if not is_index(content):
        with suppress(ValueError, RecursionError):
            json.loads(content)
            return None
    return index_lookup.found_entries(place, io.BytesIO(content))


def _lacking(found: FoundShards, checks: Expectations, where: str | Beside | None, web: str | None) -> str:
    """Why no index has the number of samples of each shard, and what to do; empty if one has."""
    uncounted = np.flatnonzero(checks.known & Known.SAMPLES == 0) if len(checks) else [0]
    if not len(uncounted):
        return ""
    name = found.names[int(uncounted[0])]
    if isinstance(where, str):
        return _silent(where)
    scheme = scheme_of(name)
    place = os.path.join(os.path.dirname(local_path(name)), INDEX_NAME) if scheme.is_local else ""
    if where is None:
        if _is_ours(place):
            return f"{place} lies beside them and was not read, since index=None was given"
        return "none was searched for, since index=None was given"
    if _is_ours(place):
        return _silent(place)
    if scheme.is_web and web is not None:
        if len(checks):
            return _silent(web)
        return f"there is none at {redact(web)}; asyncloader index makes one to upload there"
    match = next((each for each in found.matches if each.sizes is not None and name in each.urls), None)
    if match is not None and match.index is not None:
        return _silent(_listed_place(match.pattern))
    if scheme.is_listed and match is None:
        place = f"{name.rpartition('/')[0]}/{INDEX_NAME}"
        return (
            f"none is searched for beside shards of {scheme.name}:// that are named one by one: if there is "
            f"one, pass index={place!r}; otherwise make it with asyncloader index"
        )
    return "ShardWriter writes one, and asyncloader index makes one for existing shards"


def _silent(place: str) -> str:
    return f"{redact(place)} does not list them with a number of samples; asyncloader index adds it"


def _is_ours(path: str) -> bool:
    with suppress(StoreError), index_lookup.open_local_index(path) as file:
        return file is not None and is_index(file.read(MOST_LOOKED_AT_BYTES))
    return False
