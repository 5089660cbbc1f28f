"""Hold shards against their manifest, or index: read each, several at a time, and say all that is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from ..errors import StoreError
from ..formats import check_delimited, check_format
from ..shard_names import formats_of, is_shard_name
from ..shard_search import find_shards
from ..stores.access import Access
from ..stores.expanding import expand_home
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of
from .check import MANIFEST, FolderIndex, Teller
from .entries import Expected
from .expectations import Expectations
from .lookup import Entries
from .measuring import Measured, open_measuring
from .survey import Survey, differences

__all__ = ["Verified", "Verifying", "open_verifying", "open_verifying_by_index"]


@dataclass(frozen=True)
class Verified:
    """A shard, and what is wrong with it.

    Attributes:
        shard: Its URL or path, without query and user info.
        samples: How many it has; None if that cannot be told.
        size_bytes: Its length; None if that cannot be told.
        wrong: What is not as was promised, each with both values; empty for a sound shard.
    """

    shard: str
    samples: int | None
    size_bytes: int | None
    wrong: tuple[str, ...]


@dataclass
class Verifying:
    """Shards that are being verified; see ``open_verifying``.

    Attributes:
        manifest: Where it is, or the index, without query and user info.
        count: How many shards there are, those included that are listed and not there.
        each: Each of them, as it becomes known; to be iterated once.
        teller: What it is, for messages.
    """

    manifest: str
    count: int
    each: Iterator[Verified]
    teller: str


@contextmanager
def open_verifying(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    manifest: str | os.PathLike[str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> Iterator[Verifying]:
    """Read shards, and hold them against their manifest; writes nothing.

    Args:
        urls: Shards, as ``from_urls`` takes them. Of a folder, prefix or glob shards are missed that are
            listed and not there.
        manifest: Path or URL; None for ``manifest.json`` in the one folder or prefix that the shards are in.
        format: Of shards whose suffix does not tell.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        storage_options: As of ``from_urls``.
        concurrency: How many shards are read at a time; see ``build_index``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no manifest, or ``concurrency`` below 1.
        StoreError: A server cannot be asked, or the manifest not be read.
        FormatError: The manifest is not sound.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    found = find_shards(urls, format, options)
    shards = found.names
    formats = formats_of(shards, format)
    check_delimited(delimiter, formats)
    place = _manifest_beside(shards) if manifest is None else expand_home(os.fspath(manifest))
    with open_measuring(options, None, concurrency, delimiter=delimiter) as measuring:
        entries = _read(measuring.survey, place)
        is_shard = partial(is_shard_name, format=format)
        gone = (place for match in found.matches for place in entries.missing(match, is_shard))
        missing = [*dict.fromkeys(gone)]
        promised = entries.of(shards)
        each = _each(missing, promised, measuring.each(shards, formats, promised=promised))
        yield Verifying(redact(place), len(shards) + len(missing), each, MANIFEST.name)


@contextmanager
def open_verifying_by_index(
    urls: Sequence[str],
    formats: Sequence[str],
    promised: Expectations,
    index: FolderIndex,
    access: Access,
    concurrency: int | None = None,
) -> Iterator[Verifying]:
    """The same of the shards of a folder, by the index that another library has written.

    Args:
        urls: In the order of the index, which names them all.
        formats: Of each.
        promised: What it says of each.
        index: Where it is, and what else it says.
        access: How they are reached.
        concurrency: How many shards are read at a time; see ``build_index``.

    Raises:
        ValueError: ``concurrency`` is below 1.
    """
    with open_measuring(access.options, access.network, concurrency, index) as measuring:
        each = _each((), promised, measuring.each(urls, formats, promised=promised), index.teller)
        yield Verifying(redact(index.url), len(urls), each, index.teller.name)


def _read(survey: Survey, place: str) -> Entries:
    if scheme_of(place).is_local and not os.path.lexists(local_path(place)):
        raise _no_manifest(place)
    try:
        return Entries(place, survey.read(place))
    except StoreError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    raise _no_manifest(place)


def _no_manifest(place: str) -> ValueError:
    return ValueError(
        f"there is no manifest {redact(place)}; asyncloader index makes one, and --manifest names another"
    )


def _each(
    missing: Sequence[str],
    entries: Expectations,
    measured: Iterator[Measured],
    teller: Teller = MANIFEST,
) -> Iterator[Verified]:
    for place in missing:
        yield Verified(place, None, None, ("missing, and listed in the manifest",))
    for entry, (url, found) in zip(entries, measured, strict=True):
        shown = redact(url)
        if not isinstance(found, Expected):
            yield Verified(shown, None, None, (str(found),))
            continue
        wrong = ["no entry in the manifest"] if entry is None else differences(entry, found, teller)
        yield Verified(shown, found.samples, found.size_bytes, tuple(wrong))


def _manifest_beside(urls: Sequence[str]) -> str:
    """Where the manifest lies beside shards of one folder.

    Raises:
        ValueError: They are not of one, or are behind URLs that are signed each for itself.
    """
    folders = {_folder_of(url) for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError("the shards are not of one folder or prefix; say with --manifest where theirs is")
    return os.path.join(folder, MANIFEST_NAME)


def _folder_of(url: str) -> str | None:
    scheme = scheme_of(url)
    if scheme.is_local:
        return os.path.dirname(local_path(url))
    return None if scheme.is_web and "?" in url else url.rpartition("/")[0]
