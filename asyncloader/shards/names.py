"""Find shards: check and expand names, look up folders, prefixes and globs once, tell formats and lengths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from ..errors import StoreError
from ..flow.channel import Channel
from ..flow.engine import Engine, Scope
from ..formats import (
    check_format,
    compression_named,
    compression_suffixes,
    format_of,
    formats,
    has_format,
    known_suffixes,
    may_be_empty,
)
from ..observe.statistics import NetworkCounts
from ..stores.expanding import IsShard, Match, RemotePattern, expand_urls, read_urls
from ..stores.globs import index_hint
from ..stores.listing import Listing, look
from ..stores.names import (
    Braces,
    Part,
    RunLengths,
    ShardNames,
    has_unclosed_brace,
    in_lines,
    runs_of,
    shared_folder,
)
from ..stores.router import Stores, check_storage_options
from ..stores.store import Access, NetworkPolicy
from ..stores.urls import SCHEMES, WEB, Scheme, local_path, redact, scheme_of, suffix_path

__all__ = [
    "FoundShards",
    "IsShard",
    "ListedShard",
    "ShardList",
    "check_names",
    "check_prefix",
    "find_shards",
    "formats_of",
    "is_shard_name",
    "open_lengths",
    "open_shard_list",
]

_PIPE = re.compile(r"\s*pipe:", re.IGNORECASE)
_URL = re.compile(rf"(?:{'|'.join(SCHEMES)})://[^\s'\"|]+")

# Requests for lengths at a time. Each takes a round trip and next to no bytes; stores take thousands a
# second.
_AT_ONCE = 32


@dataclass(frozen=True)
class FoundShards:
    """What the user's names have come to.

    Attributes:
        names: The shards, in order.
        matches: What each folder, prefix and glob has.
        listings: The same of servers, with their indexes.
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
    indexes: bool = False,
    fetch: Sequence[str] = (),
) -> FoundShards:
    """Find the shards; servers are asked only about prefixes and globs, and for what is to be fetched.

    Args:
        urls: As the user names them.
        format: What the user says all of them are; None to go by the suffixes.
        options: Storage options.
        network: Time-outs and attempts of listings.
        indexes: Fetch the indexes that lie in prefixes and beside the matches of globs.
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
    seen = look(asked, options, is_shard, network=network, indexes=indexes, fetch=fetch)
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
    return FoundShards(
        ShardNames(parts),
        (*expanded.matches, *matches),
        seen.listings,
        expanded.schemes,
        seen.fetched,
        tuple(lengths),
    )


def is_shard_name(url: str, *, format: str | None) -> bool:
    """Whether a file or object below a prefix is a shard: by its suffix, or because the user says so."""
    return format is not None or has_format(suffix_path(url))


def check_names(names: Iterable[str]) -> None:
    """Refuse what no store understands, while the user's own words are still at hand.

    Args:
        names: Not expanded yet.

    Raises:
        ValueError: An unclosed brace, a glob of a web server, or what only WebDataset or fsspec understands:
            a command (``pipe:``), or URLs joined by ``::``.
    """
    for run in runs_of(names):
        lines = in_lines(run)
        if any(piece in lines for piece in ("::", "{", "*")) or "pipe:" in lines.lower():
            for name in run:
                _check_name(name)


def _check_name(name: str) -> None:
    if "::" in name or _PIPE.match(name) is not None:
        _check_webdataset(name)
    if "{" not in name and "*" not in name:
        return
    scheme = scheme_of(name)
    if has_unclosed_brace(redact(name) if scheme.is_web else name.replace("[{]", "")):
        literal = "%7B" if scheme.is_web or (scheme.is_local and "://" in name) else "[{]"
        raise ValueError(
            f"{redact(name)!r} has a brace that is not closed: a range is written {{000..127}}, "
            f"a brace of the name itself {literal}"
        )
    if scheme.is_web and "*" in suffix_path(name):
        raise ValueError(
            f"{redact(name)!r} is a glob, and web servers cannot be listed: name the shards by a range "
            "such as train-{000..127}.tar or in a list; a star of the name itself is written %2A"
        )


def check_prefix(pattern: str, shards: Sequence[str], *, format: str | None) -> None:
    """Refuse a prefix that takes in more than one kind of files: some are hardly meant.

    Args:
        pattern: As the user named it.
        shards: What was found below it.
        format: What the user says all of them are; None to go by the suffixes.

    Raises:
        ValueError: They have several formats.
    """
    found: dict[str, list[str]] = {}
    for shard, name in zip(shards, formats_of(shards, format), strict=True):
        found.setdefault(name, []).append(shard)
    if len(found) < 2:
        return
    # Where two are as many, in the order of the table: a text is the likelier to be a note.
    ranked = sorted(found, key=lambda name: (-len(found[name]), list(formats).index(name)))
    counts = ", ".join(
        f"{len(found[name])} {name} (such as {suffix_path(found[name][0]).rpartition('/')[2]})"
        for name in ranked
    )
    most = ranked[0]
    raise ValueError(
        f"below {redact(pattern)} are files of several formats: {counts}; name those that are meant by a "
        f"glob, such as {redact(pattern)}**/*{_suffix(found[most][0], most)}, or, if all are of one format, "
        "pass format="
    )


def formats_of(shards: Iterable[str], format: str | None) -> RunLengths:
    """The format of each shard.

    Args:
        shards: URLs and paths.
        format: What the user says it is; None to go by the suffix.

    Raises:
        ValueError: A suffix that tells none.
    """
    if format is not None:
        return RunLengths([(format, len(shards) if isinstance(shards, Sized) else sum(1 for _ in shards))])
    formats = _Formats()
    found: list[tuple[str, int]] = []
    for part in shards.parts if isinstance(shards, ShardNames) else (shards,):
        # What stands behind the braces is the end of all names of the pattern.
        if isinstance(part, Braces) and has_format(behind := suffix_path(part.pattern).rpartition("}")[2]):
            found.append((format_of(behind), len(part)))
        else:
            for run in runs_of(part):
                found += formats.of_run(run)
    return RunLengths(
        (format, sum(count for _, count in same)) for format, same in groupby(found, key=itemgetter(0))
    )


class _Formats:
    """The format of each shard; what the same suffixes tell is found out once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of_run(self, run: Sequence[str]) -> Sequence[tuple[str, int]]:
        """The formats of names in a row, each with how many have it."""
        first, lines = run[0], in_lines(run)
        is_plain = lines.count("\n") == len(run) and "?" not in lines and "#" not in lines
        if is_plain and shared_folder(run) and lines.count(f"{_suffixes(first)}\n") == len(run):
            return [(self.of(first), len(run))]
        return RunLengths.of(map(self.of, run)).runs

    def of(self, shard: str) -> str:
        path = shard
        if "?" in shard or "#" in shard or shard.rfind("/") <= shard.find("://") + 2:
            path = suffix_path(shard)  # else there is a path at the end, and what is before it does no harm
        suffix = _suffixes(path)
        known = self._known.get(suffix)
        if known is None:
            known = self._known[suffix] = _format_of(shard)
        return known


# What may stand behind a suffix that tells the format: a compression.
_SECOND = {
    *compression_suffixes,
    *(
        f".{end}"
        for row in formats.values()
        for _, dot, end in (suffix[1:].partition(".") for suffix in row.suffixes)
        if dot
    ),
}


def _suffixes(path: str) -> str:
    """What stands behind the last dot of a path, and the compression behind that, with the dots."""
    last = path.rfind(".")
    if path[last:].lower() in _SECOND:
        last = path.rfind(".", 0, last)
    return path[last:]


def _format_of(shard: str) -> str:
    path = suffix_path(shard)
    if has_format(path):
        return format_of(path)
    if not shard.strip():
        raise ValueError(f"urls should name shards, but got the empty name {shard!r}")
    name = f"cannot tell the format of {redact(shard)!r}"
    if (meant := _meant(shard)) is not None:
        raise ValueError(f"{name}: {meant}")
    hint = ""
    if not (scheme_of(shard).is_web or scheme_of(shard).is_local):
        hint = f"a prefix ends with '/' ({redact(shard)}/ for all shards below it); "
    raise ValueError(f"{name}: {hint}expected a name that ends with {known_suffixes()}; or name the format")


def _meant(shard: str) -> str | None:
    """What is meant by a name that is no shard's, whatever it ends with; None if it may be one."""
    if scheme_of(shard).is_web:
        path = urlsplit(shard).path
        listed = "web servers cannot be listed, so name each shard, by a range such as train-{000..127}.tar"
        return f"{listed} or in a list" if not path or path.endswith("/") else None
    if not scheme_of(shard).is_local or not os.path.isdir(local_path(shard)):
        return None
    return (
        f"it is a folder, whose name should end with '/' ({shard}/ for all shards below it, as a string: "
        f"a Path has no '/' at its end){index_hint(local_path(shard))}"
    )


def _suffix(shard: str, format: str) -> str:
    """The part of a shard's name that tells its format and compression."""
    name = suffix_path(shard).rpartition("/")[2]
    row = formats[format]
    begins = (name.lower().rfind(suffix) for suffix in (*row.suffixes, *row.short_suffixes))
    return name[max(begins) :]


def _check_webdataset(name: str) -> None:
    """Refuse what means something elsewhere, with what to write here; commands are not shown."""
    if _PIPE.match(name) is not None:
        url = _URL.search(name)
        shown = f", {redact(url[0])!r}" if url is not None else ""
        raise ValueError(
            "'pipe:' reads through a command, which is not run here: name the shard itself by its URL or "
            f"path{shown}, and give headers or credentials as storage_options"
        )
    joined = re.split(r"[?#]", name, maxsplit=1)[0] if name.partition(":")[0].lower() in WEB else name
    first, *others = joined.split("::")
    if not others:
        return
    joins_urls = any(map(_URL.match, others))
    if joins_urls and first.isidentifier():
        raise ValueError(
            f"'{first}::' before a URL is fsspec's way to chain file systems: name the shard itself, "
            f"{redact(others[-1])!r}, and pass cache_dir= to keep shards on disk"
        )
    if joins_urls or all(has_format(shard.rpartition("/")[2]) for shard in (first, *others)):
        scheme_of(first), scheme_of(others[0])  # what is mistyped is not shown
        raise ValueError(
            f"'::' does not join URLs here: give a list, from_urls([{redact(first)!r}, "
            f"{redact(others[0])!r}{', ...' if others[1:] else ''}])"
        )


@dataclass(frozen=True)
class ListedShard:
    """A shard.

    Attributes:
        url: Its URL or path, without query and user info.
        format: By its suffix, or as was said; None if neither tells.
        size_bytes: Its length; None if the store does not tell, or it cannot be had.
        error: Why it cannot be had or read: it is not there, or has no byte where its format wants some; else
            None.
    """

    url: str
    format: str | None
    size_bytes: int | None
    error: str | None


@dataclass
class ShardList:
    """Shards that are being looked at; see ``open_shard_list``.

    Attributes:
        count: How many there are.
        shards: Each of them, in order, as it becomes known; to be iterated once.
    """

    count: int
    shards: Iterator[ListedShard]


@contextmanager
def open_shard_list(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ShardList]:
    """Find shards and their lengths. What a listing has told is not asked for again.

    Args:
        urls: Shards, as ``from_urls`` takes them; a shard that is named may be of an unknown format.
        format: Of all of them; None to go by the suffixes.
        storage_options: As of ``from_urls``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, or names that do not fit.
        StoreError: A server cannot be asked for a listing. That a shard cannot be had is told with it.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    found = find_shards(urls, format, options)
    told = {shard.url: shard.size for listing in found.listings for shard in listing.shards}
    formats = (format or _format_by_suffix(url) for url in found.names)
    with open_lengths(found.names, formats, Access(options), told) as listed:
        yield listed


@contextmanager
def open_lengths(
    urls: Sequence[str], formats: Iterable[str | None], access: Access, told: Mapping[str, int] | None = None
) -> Iterator[ShardList]:
    """Find the lengths of shards.

    Args:
        urls: In order.
        formats: Of each; None where it is not known.
        access: How they are reached.
        told: Lengths that are known already, by URL.
    """
    untold = [url for url in urls if url not in told] if told else urls
    with Engine() as engine:
        stores = Stores(engine.resources, access, NetworkCounts())
        lengths = Channel[int | str | None](_AT_ONCE)
        engine.submit(partial(_ask_lengths, stores, untold, lengths), lengths)
        with closing(lengths):
            yield ShardList(len(urls), _each(urls, formats, told or {}, lengths))


def _each(
    urls: Iterable[str],
    formats: Iterable[str | None],
    told: Mapping[str, int],
    lengths: Channel[int | str | None],
) -> Iterator[ListedShard]:
    for url, format in zip(urls, formats, strict=True):
        length = told[url] if url in told else lengths.receive()
        error = length if isinstance(length, str) else None
        if length == 0 and format is not None and not may_be_empty(format, suffix_path(url)):
            error = f"it has 0 bytes, which is no whole {compression_named(suffix_path(url)) or format}"
        yield ListedShard(redact(url), format, None if isinstance(length, str) else length, error)


async def _ask_lengths(stores: Stores, urls: Sequence[str], lengths: Channel[int | str | None]) -> None:
    """The length of each shard in order, or why it cannot be had."""
    for first in range(0, len(urls), _AT_ONCE):
        answers: dict[int, int | str | None] = {}
        async with Scope() as scope:
            for number in range(first, min(first + _AT_ONCE, len(urls))):
                scope.start(partial(_ask_length, stores, urls[number], number, answers))
        for number in sorted(answers):
            await lengths.send_async(answers[number])


async def _ask_length(stores: Stores, url: str, number: int, answers: dict[int, int | str | None]) -> None:
    try:
        store = await stores.of(url)
        # One byte of it: some servers and signatures know GET alone.
        async with store.read(url, 0, 1) as body:
            answers[number] = body.total
    except StoreError as error:
        answers[number] = str(error.args[0])


def _format_by_suffix(url: str) -> str | None:
    try:
        return format_of(suffix_path(url))
    except ValueError:
        return None
