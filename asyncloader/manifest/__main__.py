"""``python -m asyncloader.manifest``: make the manifest of existing shards, or check them against it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from .._flow.engine import Engine
from ..errors import FormatError, StoreError
from ..formats import check_format
from ..progress import NetworkCounts
from ..shard_names import formats_of, is_shard_name
from ..shard_search import Found, IsShard, find_shards
from ..stores.access import Access
from ..stores.expanding import expand_home
from ..stores.router import Stores
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of
from .entries import Expected
from .folder import update_manifest
from .lookup import Entries
from .survey import Survey, differences


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all shards are sound, 1 if one is not, 2 for a wrong call."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        if asked.format is not None:
            check_format(asked.format)
        # No options, which come from the environment, and no manifest: it is this command that makes it.
        found = find_shards(asked.urls, asked.format, {})
        urls, formats = found.names, formats_of(found.names, asked.format)
        manifest = expand_home(asked.output) if asked.output else _manifest_beside(urls)
        names = [] if asked.check else _names(urls, manifest)
    except StoreError as error:
        _say(f"cannot look for the shards: {error}")
        return 1
    except ValueError as error:
        parser.error(str(error))
    with Engine() as engine:
        # The stores' options come from the environment.
        survey = Survey(engine, Stores(engine.resources, Access(), NetworkCounts()))
        if asked.check:
            is_shard = partial(is_shard_name, format=asked.format)
            return _check(survey, found, formats, manifest, is_shard)
        return _make(survey, urls, formats, names, manifest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asyncloader.manifest",
        description="Read each shard once and write its length, digests and number of samples to a manifest.",
    )
    parser.add_argument("urls", nargs="+", metavar="URL", help="shards, as from_urls takes them")
    parser.add_argument(
        "-o",
        "--output",
        metavar="MANIFEST",
        help=f"path of the manifest; {MANIFEST_NAME} beside the shards if they are files of one folder",
    )
    parser.add_argument("--format", help="of shards whose suffix does not tell it: tar, jsonl or text")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; hold the shards against the manifest (a path or URL) and list what is wrong",
    )
    return parser


def _make(
    survey: Survey, urls: Sequence[str], formats: Sequence[str], names: Sequence[str], manifest: str
) -> int:
    entries = {}
    bad = 0
    for name, (url, found) in zip(names, _measured(survey, urls, formats), strict=True):
        if isinstance(found, Expected):
            entries[name] = found
            _say(f"{redact(url)}: {found.samples} samples, {found.size_bytes} bytes")
        else:
            bad += 1
            _say(f"BAD {redact(url)}: {found}")
    if bad:
        _say(f"{bad} of {len(urls)} shards are bad; no manifest was written")
        return 1
    try:
        update_manifest(local_path(manifest), entries)
    except (FormatError, OSError) as error:
        _say(f"cannot write {manifest}: {error}")
        return 1
    _say(f"{manifest}: {len(urls)} shards")
    return 0


def _check(survey: Survey, found: Found, formats: Sequence[str], manifest: str, is_shard: IsShard) -> int:
    try:
        entries = Entries(manifest, survey.read(manifest))
    except (StoreError, FormatError) as error:
        _say(f"cannot use {redact(manifest)}: {error}")
        return 1
    urls = found.names
    missing = list(
        dict.fromkeys(place for match in found.matches for place in entries.missing(match, is_shard))
    )
    for place in missing:
        _say(f"BAD {place}: missing, and listed in the manifest")
    bad = len(missing)
    for entry, (url, measured) in zip(entries.of(urls), _measured(survey, urls, formats), strict=True):
        if not isinstance(measured, Expected):
            wrong = [str(measured)]
        else:
            wrong = ["no entry in the manifest"] if entry is None else differences(entry, measured)
        bad += bool(wrong)
        _say(f"BAD {redact(url)}: {'; '.join(wrong)}" if wrong else f"{redact(url)}: as the manifest says")
    shards = len(urls) + len(missing)
    _say(f"{bad} of {shards} shards are bad" if bad else f"{shards} shards are as the manifest says")
    return 1 if bad else 0


def _measured(
    survey: Survey, urls: Sequence[str], formats: Sequence[str]
) -> Iterator[tuple[str, Expected | StoreError | FormatError]]:
    """Each shard with what it is, or why that cannot be told: one bad shard does not hide the next."""
    for url, format_name in zip(urls, formats, strict=True):
        try:
            yield url, survey.measure(url, format_name)
        except (StoreError, FormatError) as error:
            yield url, error


def _manifest_beside(urls: Sequence[str]) -> str:
    folders = {os.path.dirname(local_path(url)) if scheme_of(url).is_local else None for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError("the shards are not files of one folder; say with -o where the manifest is")
    return os.path.join(folder, MANIFEST_NAME)


def _names(urls: Sequence[str], manifest: str) -> list[str]:
    """The shards as the manifest names them: files by their paths from it, others by URL."""
    if not scheme_of(manifest).is_local:
        raise ValueError("the manifest is written to a local path; copy it beside the shards afterwards")
    folder = os.path.abspath(os.path.dirname(local_path(manifest)))
    names = [_name(url, folder) for url in urls]
    if len(set(names)) < len(names):
        raise ValueError("two of the shards have one name; each should be named once")
    return names


def _name(url: str, folder: str) -> str:
    if not scheme_of(url).is_local:
        return redact(url)
    path = os.path.abspath(local_path(url))
    if not path.startswith(os.path.join(folder, "")):
        raise ValueError(f"{path} is not below {folder}, the folder of the manifest")
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
