"""What the names of shards tell: the format of each, and what to write where a name tells none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from .formats import format_of, formats, has_format, known_suffixes
from .stores.urls import local_path, redact, scheme_of, suffix_path

__all__ = ["check_names", "check_prefix", "formats_of", "is_shard_name"]

_WEB = ("http", "https")


def is_shard_name(url: str, *, format: str | None) -> bool:
    """Whether a file or object below a prefix is a shard: by its suffix, or because the user says so."""
    return format is not None or has_format(suffix_path(url))


def check_names(names: Iterable[str]) -> None:
    """Refuse what no server understands, while the user's own words are still at hand.

    Args:
        names: Expanded; patterns of object stores still stand for what is to be listed.

    Raises:
        ValueError: A remote name with an unclosed brace, or a glob of a web server.
    """
    for name in names:
        if ("{" not in name and "*" not in name) or (scheme := scheme_of(name)) == "file":
            continue
        web = scheme in _WEB
        path = suffix_path(name)
        if _has_unclosed_brace(path):
            literal = "%7B" if web else "[{]"
            raise ValueError(
                f"{redact(name)!r} has a brace that is not closed: a range is written {{000..127}}, "
                f"a brace of the name itself {literal}"
            )
        if web and "*" in path:
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


def formats_of(shards: Iterable[str], format: str | None) -> tuple[str, ...]:
    """The format of each shard.

    Args:
        shards: URLs and paths.
        format: What the user says it is; None to go by the suffix.

    Raises:
        ValueError: A suffix that tells none.
    """
    return tuple(format or _format_of(shard) for shard in shards)


def _format_of(shard: str) -> str:
    try:
        return format_of(suffix_path(shard))
    except ValueError:
        raise ValueError(
            f"cannot tell the format of {redact(shard)!r}: {_hint(shard)}expected a name that ends with "
            f"{known_suffixes()}; or name the format"
        ) from None


def _hint(shard: str) -> str:
    """What is likely meant by a name without a suffix."""
    scheme = scheme_of(shard)
    if scheme in _WEB:
        if urlsplit(shard).path.endswith("/") or not urlsplit(shard).path:
            return (
                "web servers cannot be listed, so name each shard, by a range such as train-{000..127}.tar "
                "or in a list; "
            )
        return ""
    if scheme != "file":
        return f"a prefix ends with '/' ({redact(shard)}/ for all shards below it); "
    if shard.endswith("/"):
        return "there is no such folder; "
    if os.path.isdir(local_path(shard)):
        return f"it is a folder, whose name should end with '/' ({shard}/ for all shards below it); "
    return ""


def _suffix(shard: str, format: str) -> str:
    """The part of a shard's name that tells its format and compression."""
    name = suffix_path(shard).rpartition("/")[2]
    row = formats[format]
    begins = (name.lower().rfind(suffix) for suffix in (*row.suffixes, *row.short_suffixes))
    return name[max(begins) :]


def _has_unclosed_brace(path: str) -> bool:
    depth = 0
    for character in path:
        if character == "{":
            depth += 1
        elif character == "}" and depth:
            depth -= 1
    return depth > 0
