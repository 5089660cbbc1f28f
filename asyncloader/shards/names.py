"""Find shards: check and expand names, list folders, prefixes and globs, and tell formats by suffixes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from ..formats import (
    check_delimited,
    check_format,
    ending_of,
    format_of,
    formats,
    has_format,
    known_suffixes,
)
from ..stores.expanding import Match, RemotePattern, expand_urls, read_urls
from ..stores.globs import index_hint
from ..stores.listing import look
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
from ..stores.router import check_storage_options
from ..stores.store import Access, NetworkPolicy
from ..stores.urls import SCHEMES, WEB, Scheme, local_path, redact, scheme_of, suffix_path

_PIPE = re.compile(r"\s*pipe:", re.IGNORECASE)
_URL = re.compile(rf"(?:{'|'.join(SCHEMES)})://[^\s'\"|]+")


@dataclass(frozen=True)
class FoundShards:
    """The shards that the user's names stand for.

    Attributes:
        names: The shards, in order.
        matches: What was found for each folder, prefix and glob.
        schemes: The schemes of all names.
        fetched: The contents of the objects to fetch.
        lengths: Length in bytes of each shard of each part of ``names``; None where no listing has it.
    """

    names: ShardNames = field(repr=False)
    matches: tuple[Match, ...]
    schemes: frozenset[Scheme]
    fetched: tuple[bytes, ...] = field(repr=False)
    lengths: tuple[Sequence[int] | None, ...] = field(repr=False)


@dataclass(frozen=True)
class NamedShards:
    """Shards as a caller names them.

    Attributes:
        urls: As ``from_urls`` takes them.
        format: Of shards whose suffix does not show it; None to use the suffixes.
        delimiter: Of CSV and TSV, as ``from_urls`` takes it.
        storage_options: As ``from_urls`` takes them.
        network: Time-outs, retries and hedging; None for the defaults.
    """

    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    format: str | None = None
    delimiter: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    network: NetworkPolicy | None = None

    @property
    def access(self) -> Access:
        """How they are reached."""
        return Access(dict(self.storage_options or {}), self.network or NetworkPolicy())

    def find(self) -> FoundShards:
        """Find them; see ``find_shards``."""
        return find_shards(self.urls, self.format, self.access.options, self.network)

    def find_with_formats(self) -> tuple[FoundShards, RunLengths]:
        """Find them, and the format of each.

        Raises:
            TypeError, ValueError, StoreError: See ``find_shards`` and ``formats_of``; or a delimiter that
                does not fit the formats.
        """
        found = self.find()
        formats = formats_of(found.names, self.format)
        check_delimited(self.delimiter, formats)
        return found, formats


def find_shards(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None,
    options: Mapping[str, Any],
    network: NetworkPolicy | None = None,
    *,
    indexes: bool = False,
    fetch: Sequence[str] = (),
) -> FoundShards:
    """Find the shards. Servers get requests only for prefixes and globs, and for objects to fetch.

    Args:
        urls: As the user names them.
        format: The format of all; None to use the suffixes.
        options: Storage options.
        network: Time-outs and attempts of listings.
        indexes: Fetch the indexes that lie in prefixes and beside the matches of globs.
        fetch: URLs of small objects to fetch.

    Raises:
        TypeError: Something else than strings and paths, or an option of a wrong type.
        ValueError: No shard, an unknown format, or names and options that do not fit.
        StoreError: A request failed.
    """
    if format is not None:
        check_format(format)
    is_shard = partial(is_shard_name, format=format)
    patterns = read_urls(urls)
    check_names(patterns)
    expanded = expand_urls(patterns, is_shard)
    check_storage_options({*expanded.schemes, *map(scheme_of, fetch)}, options)
    asked = [part.pattern for part in expanded.parts if isinstance(part, RemotePattern)]
    seen = look(asked, options, is_shard, network=network, indexes=indexes, fetch=fetch)
    matches = *expanded.matches, *seen.matches
    for match in matches:
        if match.pattern.endswith("/"):
            check_prefix(match.pattern, match.urls, format=format)
    listed = iter(seen.matches)
    parts: list[Part] = []
    lengths: list[Sequence[int] | None] = []
    for part in expanded.parts:
        if isinstance(part, RemotePattern):
            match = next(listed)
            parts.append(tuple(match.urls))
            lengths.append(match.sizes)
        else:
            parts.append(part)
            lengths.append(None)
    return FoundShards(
        ShardNames(parts),
        matches,
        expanded.schemes,
        seen.fetched,
        tuple(lengths),
    )


def is_shard_name(url: str, *, format: str | None) -> bool:
    """Whether a file or object below a prefix is a shard: by its suffix, or since the user names a format."""
    return format is not None or has_format(suffix_path(url))


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no store understands, before they are expanded.

    Args:
        names: As the user has written them.

    Raises:
        ValueError: An unclosed brace, a glob of a web server, or syntax of WebDataset or fsspec: a command
            (``pipe:``), or URLs joined by ``::``.
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
            f"{redact(name)!r} has a brace that is not closed: write a range as {{000..127}}, "
            f"and a brace in a name as {literal}"
        )
    if scheme.is_web and "*" in suffix_path(name):
        raise ValueError(
            f"{redact(name)!r} is a glob, and web servers cannot be listed: name the shards by a range "
            "such as train-{000..127}.tar or in a list. Write a star in a name as %2A"
        )


def check_prefix(pattern: str, shards: Sequence[str], *, format: str | None) -> None:
    """Refuse a prefix with files of several formats: probably not all are meant.

    Args:
        pattern: As the user named it.
        shards: The files found below it.
        format: The format of all; None to use the suffixes.

    Raises:
        ValueError: They have several formats.
    """
    found: dict[str, list[str]] = {}
    for shard, name in zip(shards, formats_of(shards, format), strict=True):
        found.setdefault(name, []).append(shard)
    if len(found) < 2:
        return
    # Equal counts are in the order of the table: a text is more likely to be a note than a shard.
    ranked = sorted(found, key=lambda name: (-len(found[name]), list(formats).index(name)))
    counts = ", ".join(
        f"{len(found[name])} {name} (such as {suffix_path(found[name][0]).rpartition('/')[2]})"
        for name in ranked
    )
    most = ranked[0]
    raise ValueError(
        f"below {redact(pattern)} are files of several formats: {counts}; select some by a glob, such as "
        f"{redact(pattern)}**/*{_suffix(found[most][0])}, or, if all are of one format, pass format="
    )


def formats_of(shards: Iterable[str], format: str | None) -> RunLengths:
    """The format of each shard.

    Args:
        shards: URLs and paths.
        format: The format of all; None to use the suffixes.

    Raises:
        ValueError: A suffix that shows no format.
    """
    if format is not None:
        return RunLengths([(format, len(shards) if isinstance(shards, Sized) else sum(1 for _ in shards))])
    found: list[tuple[str, int]] = []
    for part in shards.parts if isinstance(shards, ShardNames) else (shards,):
        # All names of the pattern end with the text behind its braces.
        if isinstance(part, Braces) and has_format(behind := suffix_path(part.pattern).rpartition("}")[2]):
            found.append((format_of(behind), len(part)))
        else:
            for run in runs_of(part):
                found += _formats_of_run(run)
    return RunLengths(
        (format, sum(count for _, count in same)) for format, same in groupby(found, key=itemgetter(0))
    )


def _formats_of_run(run: Sequence[str]) -> Sequence[tuple[str, int]]:
    """The formats of names in a row, each with how many have it."""
    first, lines = run[0], in_lines(run)
    if "?" not in lines and "#" not in lines and shared_folder(run):  # all end with the path
        format = _format_of(first)
        if lines.count("\n") == lines.count(f"{_suffix(first)}\n") == len(run):
            return [(format, len(run))]
    return RunLengths.of(map(_format_of, run)).runs


def _format_of(shard: str) -> str:
    path = suffix_path(shard)
    try:
        return format_of(path)
    except ValueError:
        if has_format(path):  # but not with this compression
            raise
    if not shard.strip():
        raise ValueError(f"urls should name shards, but got the empty name {shard!r}")
    name = f"cannot tell the format of {redact(shard)!r}"
    if (meant := _meant(shard)) is not None:
        raise ValueError(f"{name}: {meant}")
    hint = ""
    if scheme_of(shard).is_local and not os.path.exists(missing := os.path.abspath(local_path(shard))):
        hint = f"there is no file or folder {missing!r}; "
    elif not (scheme_of(shard).is_web or scheme_of(shard).is_local):
        hint = f"a prefix ends with '/' ({redact(shard)}/ for all shards below it); "
    raise ValueError(f"{name}: {hint}expected {known_suffixes()}; or name the format by format=")


def _meant(shard: str) -> str | None:
    """What a name means that cannot be a shard; None if it may be one."""
    if scheme_of(shard).is_web:
        path = urlsplit(shard).path
        listed = "web servers cannot be listed, so name each shard, by a range such as train-{000..127}.tar"
        return f"{listed} or in a list" if not path or path.endswith("/") else None
    if not scheme_of(shard).is_local or not os.path.isdir(local_path(shard)):
        return None
    return (
        f"it is a folder; pass '{shard}/' for all shards below it, as a string, since a Path cannot end "
        f"with '/'{index_hint(local_path(shard))}"
    )


def _suffix(shard: str) -> str:
    """The suffix of a shard's name with its format and compression."""
    path = suffix_path(shard)
    return path[-len(ending_of(path)) :]


def _check_webdataset(name: str) -> None:
    """Refuse the syntax of WebDataset and fsspec, with what to write instead; commands are not shown."""
    if _PIPE.match(name) is not None:
        url = _URL.search(name)
        shown = f", {redact(url[0])!r}" if url is not None else ""
        raise ValueError(
            "'pipe:' reads through a command, and commands are not run: name the shard itself by its URL or "
            f"path{shown}, and pass headers or credentials as storage_options"
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
        scheme_of(first), scheme_of(others[0])  # raises for a wrong scheme, without showing the name
        raise ValueError(
            f"'::' does not join URLs here: pass a list, from_urls([{redact(first)!r}, "
            f"{redact(others[0])!r}{', ...' if others[1:] else ''}])"
        )
