"""The folder of a data set: its index, read once where the recipe is made, and the URLs of what is in it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import FormatError, StoreError
from ..recipes import check_renewed
from ..stores.access import Access
from ..stores.expanding import expand_home
from ..stores.listing.asking import look
from ..stores.names import ShardNames
from ..stores.objects.options import check_buckets
from ..stores.options import check_storage_options
from ..stores.policy import NetworkPolicy
from ..stores.urls import check_web_url, local_path, redact, scheme_of

__all__ = ["Folder", "opened_index"]

_INDEX_NAME = "index.json"

# As much as is fetched of a server: the index of some 400,000 shards.
_MOST_INDEX_BYTES = 256 << 20

# For messages: folders that are named, and entries that are looked at for them.
_MOST_NAMED = 8
_MOST_LOOKED_AT = 1000


@dataclass(frozen=True)
class Folder:
    """A folder, wherever it is.

    Attributes:
        url: As the user has named it, with the split's below it, and no ``/`` at its end.
    """

    url: str

    @property
    def is_local(self) -> bool:
        return scheme_of(self.url).is_local

    @property
    def index_url(self) -> str:
        return _below(self.url, _INDEX_NAME)

    def url_of(self, name: str) -> str:
        """The URL of a file in it.

        Args:
            name: Below the folder, with ``/`` between the parts.

        Raises:
            FormatError: An index names something outside of it.
        """
        if name.startswith("/") or "\0" in name or {"", ".", ".."} & {*name.split("/")}:
            raise FormatError(
                f"an index should name files below its own folder, found {name[:80]!r}",
                shard=redact(self.url),
            )
        return _below(self.url, name)

    def shards_of(self, names: Iterable[str]) -> ShardNames:
        """The URLs of the files that the index names.

        Raises:
            FormatError: See ``url_of``.
            ValueError: It names none.
        """
        urls = tuple(map(self.url_of, names))
        if not urls:
            raise ValueError(f"there is no shard in {redact(self.index_url)}")
        return ShardNames([urls])

    def has(self, name: str) -> bool:
        """Whether a file is there; for local folders."""
        return os.path.exists(local_path(self.url_of(name)))

    def read_index(self, options: Mapping[str, Any], network: NetworkPolicy, what: str) -> bytes:
        """The index.

        Args:
            options: Storage options.
            network: Time-outs and attempts.
            what: Folders have one there, and what to do about one that has none; for messages.

        Raises:
            ValueError: There is none in a local folder.
            StoreError: It cannot be read.
        """
        url = self.index_url
        if not self.is_local:
            try:
                return look((), options, network=network, fetch=[url]).fetched[0]
            except StoreError as error:
                error.add_note(what)
                raise
        path = local_path(url)
        try:
            # A FIFO would never end, nor even open.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise StoreError(f"{_INDEX_NAME} should be a file", shard=path)
            with open(path, "rb") as file:
                content = file.read(_MOST_INDEX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"there is no {path!r}: {what}{_those_near(os.path.dirname(path))}") from None
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot be read: {error.strerror}", shard=path) from error
        if len(content) > _MOST_INDEX_BYTES:
            raise StoreError(f"expected at most {_MOST_INDEX_BYTES >> 20} MiB to be read at once", shard=path)
        return content


@contextmanager
def opened_index(
    root: str | os.PathLike[str], split: str | None, access: Access, format: str
) -> Iterator[tuple[Folder, bytes]]:
    """The folder that the user means and its index; a FormatError of who reads it within names the index.

    Args:
        root: See ``_open_folder``.
        split: See ``_open_folder``.
        access: To the index and to what it names.
        format: Which index it should be.

    Raises:
        TypeError: See ``_open_folder``.
        ValueError: See ``_open_folder``; there is no index in a local folder, or ``renew`` where nothing is
            behind http(s).
        StoreError: The index cannot be read.
    """
    folder = _open_folder(root, split, access.options)
    check_renewed(access, [scheme_of(folder.url)])
    makers, _, how = _INDEXES[format]
    what = (
        f"a folder of {makers} has an index.json; where it is of several parts, each in a folder of its own, "
        f"name one of them{how}, or join datasets with al.concat"
    )
    content = folder.read_index(access.options, access.network, what)
    try:
        yield folder, content
    except FormatError as error:
        error.shard = redact(folder.index_url)
        _note_whose(error, content, format)
        raise


def _open_folder(root: str | os.PathLike[str], split: str | None, options: Mapping[str, Any]) -> Folder:
    """The folder that the user means; asks nobody.

    Args:
        root: Its URL or path.
        split: A folder below it; None for itself.
        options: Storage options, which are checked.

    Raises:
        TypeError: No strings, or an option of a wrong type.
        ValueError: An unknown scheme, a web URL without a host, or options that do not fit.
    """
    if not isinstance(root, str | os.PathLike) or not isinstance(named := os.fspath(root), str):
        raise TypeError(f"root should be a URL or path of a folder, but got {type(root).__name__}")
    if split is not None and not isinstance(split, str):
        raise TypeError(f"split should be the name of a folder, but got {type(split).__name__}")
    if not named:
        raise ValueError("root should be a URL or path of a folder, but got an empty text")
    url = expand_home(named)
    scheme = scheme_of(url)
    if scheme.is_web:
        check_web_url(url)
    if (urlsplit(url).path if "://" in url else url).endswith(f"/{_INDEX_NAME}"):
        raise ValueError(f"root should be the folder that the {_INDEX_NAME} is in, but got {redact(url)!r}")
    parts = [part for part in (split or "").split("/") if part]
    if {".", ".."} & {*parts}:
        raise ValueError(f"split should name a folder below {redact(url)!r}, but got {split!r}")
    folder = Folder(_below(url, "/".join(parts)) if parts else url)
    check_storage_options({scheme}, options)
    check_buckets([folder.index_url], options)
    return folder


# By format: whose it is, what the object of the file has, and how else a folder is named.
_INDEXES = {
    "mds": ("MDS", {"shards", "version"}, ", by its URL or with split="),
    "litdata": ("LitData's chunks", {"chunks", "config"}, ""),
}


def _note_whose(error: FormatError, content: bytes, format: str) -> None:
    """Say so where what was to be read as ``format`` is the index of another library's data set."""
    with suppress(ValueError, RecursionError):
        index = json.loads(content)
        for other, (makers, keys, _) in _INDEXES.items():
            if other != format and isinstance(index, dict) and keys <= index.keys():
                error.add_note(f"it looks like the index of {makers}, which al.from_{other} reads")


def _those_near(folder: str) -> str:
    """A clause on the local folders in ``folder``, or beside it, that have an index; else empty."""
    for place, where in (folder, "in it"), (os.path.dirname(folder), "beside it"):
        with suppress(OSError):
            if names := sorted(islice(_indexed(place), _MOST_NAMED)):
                return f"; folders {where} that have one: {', '.join(map(repr, names))}"
    return ""


def _indexed(place: str) -> Iterator[str]:
    with os.scandir(place) as entries:
        for entry in islice(entries, _MOST_LOOKED_AT):
            if os.path.isfile(os.path.join(entry.path, _INDEX_NAME)):
                yield entry.name


def _below(url: str, name: str) -> str:
    """The URL of what is below a folder; a signature in a query stays where it is."""
    if "://" not in url:
        return os.path.join(url, name)
    if scheme_of(url).is_web:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
    # Keys of object stores know no escapes, those of file:// do.
    return f"{url.rstrip('/')}/{quote(name) if scheme_of(url).is_local else name}"
