"""Names of shards: brace ranges, local globs and folders, schemes, and what of a URL may be shown."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, product
from urllib.parse import unquote, urlsplit

from .globs import has_special

__all__ = [
    "MANIFEST_NAME",
    "MOST_SHARDS",
    "SCHEMES",
    "expand_urls",
    "is_remote_pattern",
    "local_path",
    "redact",
    "scheme_of",
    "split_key",
    "suffix_path",
]

SCHEMES = ("http", "https", "s3", "gs", "az", "hf", "file")

#: More shards than any data set has; a slip such as {0..999999999} should not eat the memory.
MOST_SHARDS = 10_000_000

#: Lies beside the shards that it describes, and is none of them.
MANIFEST_NAME = "manifest.json"

# Of these schemes a server lists what there is.
_LISTABLE = ("s3", "gs", "az", "hf")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# No shard is a file of such a name, but a URL with its signature may be mistyped so, and would be shown.
_MISTYPED = re.compile(r"\s*(https?|s3|gs|az|hf|file)\s*:", re.IGNORECASE)
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")


def expand_urls(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    is_shard: Callable[[str], bool] = lambda name: True,
    check_folder: Callable[[str, Sequence[str]], None] = lambda folder, shards: None,
) -> tuple[str, ...]:
    """Every shard that ``urls`` names, in order; patterns of object stores stay patterns.

    Brace ranges (``{000..127}``, padded as written) and lists (``{a,b}``) are expanded as a shell does,
    also in one another, and other braces left alone; then local globs (``*``, ``?``, ``[...]``, and
    ``**`` for folders of any depth) and folders (a path that ends in ``/``), whose matches are sorted.

    Args:
        urls: As given by the user.
        is_shard: Which of the files below a folder count, by their names.
        check_folder: Called with each local folder that was named, and the shards below it.

    Raises:
        TypeError: Something else than strings or paths.
        ValueError: No shard at all, an unknown scheme, a bad range, a web URL without a host or with a port
            that is none, or a glob or folder without a match.
    """
    if isinstance(urls, str | os.PathLike):
        urls = [urls]
    if not isinstance(urls, Iterable):
        raise TypeError(f"urls should be strings or paths, but got {type(urls).__name__}")
    shards: list[str] = []
    for url in urls:
        if not isinstance(url, str | os.PathLike):
            # Not what it is: it may be a URL all the same, as bytes, with a signature.
            raise TypeError(f"urls should be strings or paths, but got {type(url).__name__}")
        for name in _expand_braces(os.fspath(url)):
            scheme = scheme_of(name)
            if scheme in ("http", "https"):
                _check_web_url(name)
            found = _expand_local(name, is_shard) if scheme == "file" else [name]
            if name.endswith("/") and found != [name]:
                check_folder(name, found)
            shards.extend(found)
            if len(shards) > MOST_SHARDS:
                raise ValueError(f"{redact(os.fspath(url))} names more than {MOST_SHARDS} shards")
    if not shards:
        raise ValueError("urls should name at least one shard, but got an empty list")
    return tuple(shards)


def scheme_of(url: str) -> str:
    """The scheme, ``file`` for a plain path.

    Raises:
        ValueError: A scheme that no store serves, or one that is not written as such.
    """
    match = _SCHEME.match(url)
    if match is None:
        mistyped = _MISTYPED.match(url)
        if mistyped is not None:
            raise ValueError(f"a URL should begin with {mistyped[1]}://, but one begins with {mistyped[0]!r}")
        return "file"
    scheme = match[1].lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"unknown scheme {scheme}:// in {redact(url)!r}; known are {known} and plain paths")
    return scheme


def local_path(url: str) -> str:
    """The path that a ``file://`` URL or a plain path means."""
    match = _SCHEME.match(url)
    if match is None:
        return url
    # Not urlsplit: files have no query, and a ``?`` is a glob's.
    host, slash, path = url[match.end() :].partition("/")
    if host not in ("", "localhost"):
        raise ValueError(
            f"a file:// URL should have no host, but got {host.rpartition('@')[2]!r}; write file:///path"
        )
    return unquote(slash + path)


def is_remote_pattern(url: str) -> bool:
    """Whether a server must be asked which shards ``url`` means: a prefix that ends in ``/``, or a glob."""
    if scheme_of(url) not in _LISTABLE:
        return False
    root, key = split_key(url)
    return root.endswith("/") and (key == "" or key.endswith("/") or has_special(key))


def split_key(url: str) -> tuple[str, str]:
    """``scheme://bucket/`` and the key behind it, as written: keys know no escapes."""
    scheme, _, rest = url.partition("://")
    bucket, slash, key = rest.partition("/")
    return f"{scheme}://{bucket}{slash}", key


def suffix_path(url: str) -> str:
    """The part of ``url`` that has the file name with its suffixes: no query, no fragment."""
    match = _SCHEME.match(url)
    if match is None:
        return url
    if match[1].lower() in ("http", "https"):
        return urlsplit(url).path
    return url[match.end() :].partition("/")[2]  # keys and files have neither query nor fragment


def redact(url: str) -> str:
    """``url`` as it may be shown: without user info, query and fragment, where secrets live."""
    match = _SCHEME.match(url)
    if match is None or match[1].lower() == "file":
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # such as brackets that hold no address; an error message must not fail for it
        return f"{match[1]}://(not a valid URL)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check_web_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0  # looking at the port raises, too
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"a URL should be http(s)://host[:port]/path, but got {redact(url)!r}")


def _expand_braces(pattern: str) -> Iterator[str]:
    segments: list[Sequence[str]] = []  # literal, choices, literal, ...
    done = 0
    while (group := _first_group(pattern, done)) is not None:
        first, last = group
        segments += [pattern[done:first]], _choices(pattern[first + 1 : last])
        done = last + 1
    segments.append([pattern[done:]])
    return map("".join, product(*segments))


def _first_group(pattern: str, begin: int) -> tuple[int, int] | None:
    """Where the first brace at or after ``begin`` that has a partner is, and its partner."""
    for first in range(begin, len(pattern)):
        if pattern[first] == "{" and (last := _partner(pattern, first)) is not None:
            return first, last
    return None


def _partner(pattern: str, first: int) -> int | None:
    depth = 0
    for index in range(first, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[index], 0)
        if depth == 0:
            return index
    return None


def _choices(inside: str) -> Sequence[str]:
    """What may stand in place of a brace and its contents."""
    if (bounds := _RANGE.fullmatch(inside)) is not None:
        return _numbers(*bounds.groups())
    parts = _split_list(inside)
    if len(parts) > 1:
        return _few(chain.from_iterable(_expand_braces(part) for part in parts))
    return _few(f"{{{name}}}" for name in _expand_braces(inside))


def _few(names: Iterable[str]) -> list[str]:
    """The names, or one more than are allowed, for the caller to refuse."""
    return list(islice(names, MOST_SHARDS + 1))


def _split_list(inside: str) -> list[str]:
    """Split at the commas that are in no brace of their own."""
    parts, begin, depth = [], 0, 0
    for index, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(inside[begin:index])
            begin = index + 1
    return [*parts, inside[begin:]]


def _numbers(first: str, last: str) -> Sequence[str]:
    low, high = int(first), int(last)
    if low > high or high - low >= MOST_SHARDS:
        raise ValueError(
            f"a brace range should rise and name at most {MOST_SHARDS} shards, but got {{{first}..{last}}}"
        )
    padded = any(bound.startswith("0") and len(bound) > 1 for bound in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [str(number).zfill(width) for number in range(low, high + 1)]


def _expand_local(name: str, is_shard: Callable[[str], bool]) -> list[str]:
    path = local_path(name)
    if path.endswith("/") and os.path.isdir(path):
        return _below(path, is_shard)
    if not glob.has_magic(path) or os.path.exists(path):
        return [name]
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise ValueError(f"no file matches {name!r} (looked from {os.getcwd()})")
    return matches


def _below(folder: str, is_shard: Callable[[str], bool]) -> list[str]:
    files = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    manifest = os.path.join(folder, MANIFEST_NAME)
    shards = sorted(path for path in files if is_shard(path) and path != manifest)
    if not shards:
        raise ValueError(f"no file below {folder!r} is a shard by its suffix, of {len(files)} that are there")
    return shards
