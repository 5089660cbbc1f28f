"""Names of shards: brace ranges, local globs, schemes, and what of a URL may be shown."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from itertools import product
from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["SCHEMES", "expand_urls", "local_path", "redact", "scheme_of", "suffix_path"]

SCHEMES = ("http", "https", "s3", "gs", "az", "file")

# More shards than any data set has; a slip such as {0..999999999} should not eat the memory.
_MOST_SHARDS = 10_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_urls(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Every shard that ``urls`` names, in order.

    Brace ranges (``{000..127}``, padded as written) and lists (``{a,b}``) are expanded, then local
    globs (``*``, ``?``, ``[...]``), whose matches are sorted.

    Raises:
        TypeError: Something else than strings or paths.
        ValueError: No shard at all, an unknown scheme, a bad range, or a glob without a match.
    """
    if isinstance(urls, str | os.PathLike):
        urls = [urls]
    shards: list[str] = []
    for url in urls:
        if not isinstance(url, str | os.PathLike):
            raise TypeError(f"urls should be strings or paths, but got {type(url).__name__}: {url!r}")
        for name in _expand_braces(os.fspath(url)):
            shards.extend(_expand_glob(name) if scheme_of(name) == "file" else [name])
            if len(shards) > _MOST_SHARDS:
                raise ValueError(f"{redact(os.fspath(url))} names more than {_MOST_SHARDS} shards")
    if not shards:
        raise ValueError("urls should name at least one shard, but got an empty list")
    return tuple(shards)


def scheme_of(url: str) -> str:
    """The scheme, ``file`` for a plain path.

    Raises:
        ValueError: A scheme that no store serves.
    """
    match = _SCHEME.match(url)
    if match is None:
        return "file"
    scheme = match[1].lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"unknown scheme {scheme}:// in {redact(url)!r}; known are {known} and plain paths")
    return scheme


def local_path(url: str) -> str:
    """The path that a ``file://`` URL or a plain path means."""
    if _SCHEME.match(url) is None:
        return url
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"a file:// URL should have no host, but got {url!r}; write file:///path")
    return unquote(parts.path)


def suffix_path(url: str) -> str:
    """The part of ``url`` that has the file name with its suffixes: no query, no fragment."""
    return url if _SCHEME.match(url) is None else urlsplit(url).path


def redact(url: str) -> str:
    """``url`` as it may be shown: without user info, query and fragment, where secrets live."""
    if _SCHEME.match(url) is None:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _expand_braces(pattern: str) -> Iterator[str]:
    pieces = _BRACES.split(pattern)  # literal, inside of braces, literal, ...
    options = [
        [piece] if index % 2 == 0 else _brace_options(piece, pattern) for index, piece in enumerate(pieces)
    ]
    for choice in product(*options):
        yield "".join(choice)


def _brace_options(inside: str, pattern: str) -> list[str]:
    if (bounds := _RANGE.fullmatch(inside)) is not None:
        first, last = bounds.groups()
        low, high = int(first), int(last)
        if low > high or high - low >= _MOST_SHARDS:
            raise ValueError(
                f"a brace range should rise and name at most {_MOST_SHARDS} shards, "
                f"but got {{{inside}}} in {redact(pattern)!r}"
            )
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        return [str(number).zfill(width) for number in range(low, high + 1)]
    if "," in inside:
        return inside.split(",")
    return [f"{{{inside}}}"]


def _expand_glob(name: str) -> list[str]:
    path = local_path(name)
    if not glob.has_magic(path) or os.path.exists(path):
        return [name]
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise ValueError(f"no file matches {name!r} (looked from {os.getcwd()})")
    return matches
