"""What the names of shards tell: the format of each, and what to write where a name tells none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence, Sized
from itertools import groupby
from operator import itemgetter
from urllib.parse import urlsplit

from .formats import compression_suffixes, format_of, formats, has_format, known_suffixes
from .stores.braces import Braces, has_unclosed_brace
from .stores.folders import index_hint
from .stores.names import ShardNames
from .stores.runs import NameRun, runs_of
from .stores.schemes import SCHEMES
from .stores.urls import WEB, local_path, redact, scheme_of, suffix_path
from .texts import RunLengths

__all__ = ["check_names", "check_prefix", "formats_of", "is_shard_name"]

_PIPE = re.compile(r"\s*pipe:", re.IGNORECASE)
_URL = re.compile(rf"(?:{'|'.join(SCHEMES)})://[^\s'\"|]+")


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
        if run.has(("::", "{", "*")) or "pipe:" in run.lines.lower():
            for name in run.names:
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

    def of_run(self, run: NameRun) -> Sequence[tuple[str, int]]:
        """The formats of names in a row, each with how many have it."""
        first = run.names[0]
        if run.folder and not run.has("?#") and run.all_end_with(_suffixes(first)):
            return [(self.of(first), len(run.names))]
        return RunLengths.of(map(self.of, run.names)).runs

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
