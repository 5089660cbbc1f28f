"""``python -m asyncloader.manifest``: make the manifest of existing shards, or check them against it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .._flow.engine import Engine
from ..counting import NetworkCounts
from ..errors import FormatError, StoreError
from ..formats import check_format
from ..shard_names import formats_of, is_shard_name
from ..shard_search import Found, IsShard, find_shards
from ..stores.access import Access
from ..stores.expanding import expand_home
from ..stores.router import Stores
from ..stores.urls import MANIFEST_NAME, local_path, redact
from .building import Journal, manifest_beside, measured, names_in, open_threads
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
        manifest = expand_home(asked.output) if asked.output else manifest_beside(urls)
        names = [] if asked.check else names_in(manifest, urls)
    except StoreError as error:
        _say(f"cannot look for the shards: {error}")
        return 1
    except ValueError as error:
        parser.error(str(error))
    if asked.concurrency is not None and asked.concurrency < 1:
        parser.error(f"--concurrency should be at least 1, but is {asked.concurrency}")
    with open_threads(asked.concurrency) as threads, Engine() as engine:
        # The stores' options come from the environment.
        survey = Survey(engine, Stores(engine.resources, Access(), NetworkCounts()))
        if asked.check:
            is_shard = partial(is_shard_name, format=asked.format)
            return _check(survey, found, formats, manifest, is_shard, threads)
        with Journal(manifest) as journal:
            return _make(survey, urls, formats, names, manifest, journal, threads)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asyncloader.manifest",
        description="Read each shard once and write to a manifest its length, digests and number of samples, "
        "and where to begin inside of it. A run that was killed goes on where it was.",
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
        "-j",
        "--concurrency",
        type=int,
        metavar="N",
        help="how many shards are read at a time; as many as there are processors, of up to 8",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; hold the shards against the manifest (a path or URL) and list what is wrong",
    )
    return parser


def _make(
    survey: Survey,
    urls: Sequence[str],
    formats: Sequence[str],
    names: Sequence[str],
    manifest: str,
    journal: Journal,
    threads: ThreadPoolExecutor,
) -> int:
    entries = {}
    bad = 0
    seen = measured(survey, urls, formats, threads, names, journal)
    for name, (url, found) in zip(names, seen, strict=True):
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
        journal.remove()
    except (FormatError, OSError) as error:
        _say(f"cannot write {manifest}: {error}")
        return 1
    _say(f"{manifest}: {len(urls)} shards")
    return 0


def _check(
    survey: Survey,
    found: Found,
    formats: Sequence[str],
    manifest: str,
    is_shard: IsShard,
    threads: ThreadPoolExecutor,
) -> int:
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
    seen = measured(survey, urls, formats, threads)
    for entry, (url, shard) in zip(entries.of(urls), seen, strict=True):
        if not isinstance(shard, Expected):
            wrong = [str(shard)]
        else:
            wrong = ["no entry in the manifest"] if entry is None else differences(entry, shard)
        bad += bool(wrong)
        _say(f"BAD {redact(url)}: {'; '.join(wrong)}" if wrong else f"{redact(url)}: as the manifest says")
    shards = len(urls) + len(missing)
    _say(f"{bad} of {shards} shards are bad" if bad else f"{shards} shards are as the manifest says")
    return 1 if bad else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
