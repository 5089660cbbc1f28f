"""Recipes of folders with an index, as other libraries write them, and recipes by the name of a format."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import FormatError, StoreError
from ..formats import columns_of_all
from ..formats.decoder import Selection
from ..formats.digest import ALGORITHMS, open_digest
from ..formats.litdata import ChunkSchema, decoder_of, parse_litdata_index
from ..formats.mds import parse_mds_index
from ..formats.offsets import IndexedFile, IndexedShard
from ..formats.selection import make_selection
from ..quantity import as_count
from ..shards.catalog import BESIDE
from ..shards.expectations import Expectations, Expected
from ..shards.index_check import FOREIGN_INDEX, OLDER_FOREIGN_INDEX, FolderIndex
from ..stores.expanding import expand_home, read_urls
from ..stores.listing import look
from ..stores.names import RunLengths, ShardNames
from ..stores.objects.backend import check_buckets
from ..stores.router import check_storage_options
from ..stores.store import Access, NetworkPolicy, Renew
from ..stores.urls import check_web_url, local_path, redact, scheme_of
from ..types import Unpacked
from .dataset import Dataset, dataset_of, recipe_of
from .recipes import check_renewed, from_urls, make_access
from .shards import Shards

_INDEX_NAME = "index.json"

# As much as is fetched of a server: the index of some 400,000 shards.
_MOST_INDEX_BYTES = 256 << 20

# For messages: folders that are named, and entries that are looked at for them.
_MOST_NAMED = 8
_MOST_LOOKED_AT = 1000


@dataclass(frozen=True)
class IndexedFolder:
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


def _open_shards(
    format: str,
    root: str | os.PathLike[str],
    split: str | None,
    access: Access,
    selection: Selection,
    parse: Callable[[IndexedFolder, bytes], tuple[Iterable[IndexedShard], Any]],
) -> Shards:
    """The shards of the folder that the user means, as its index has them.

    Args:
        format: Which index it should be.
        root: See ``_open_folder``.
        split: See ``_open_folder``.
        access: To the index and to what it names.
        selection: What is wanted of the shards.
        parse: Makes of the folder and its index the shards in it, and what else they all hold.

    Raises:
        TypeError: See ``_open_folder``.
        ValueError: See ``_open_folder``; there is no index in a local folder, or ``renew`` where nothing is
            behind http(s).
        StoreError: The index cannot be read.
        FormatError: It is not sound.
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
        found, schema = parse(folder, content)
        shards = [*found]
        names = folder.shards_of(shard.file.basename for shard in shards)
        # A plan finds any sample: they have no offsets of their own.
        expected = Expectations.of(map(_expected, shards))
    except FormatError as error:
        error.shard = redact(folder.index_url)
        _note_whose(error, content, format)
        raise
    formats = RunLengths.of(shard.format for shard in shards)
    teller = OLDER_FOREIGN_INDEX if schema is not None and schema.may_be_older else FOREIGN_INDEX
    index = FolderIndex(folder.index_url, schema, teller)
    return Shards(names, formats, access, expected, selection, index=index)


def _open_folder(
    root: str | os.PathLike[str], split: str | None, options: Mapping[str, Any]
) -> IndexedFolder:
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
    folder = IndexedFolder(_below(url, "/".join(parts)) if parts else url)
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


def from_mds(
    root: str | os.PathLike[str],
    *,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    decode: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """A recipe that streams a data set of MDS as it is, which MosaicML's ``streaming`` has written.

    Its ``index.json`` is read now, once; of servers in a process of its own. It tells how many samples each
    shard has, so that lanes are cut equal to the sample and lengths are known, and what the shards should be,
    against which they are checked: their lengths, and where a whole shard is read, a digest. Samples come in
    the order of the shards, and are what ``streaming`` makes of them, value for value.

    Args:
        root: The folder with the index, a URL or a path as ``from_urls`` takes them, without braces and
            globs. Several of them (streams) are recipes of their own, which ``concat`` and ``mix`` join.
        split: A folder below it, as ``streaming`` has it: ``"train"``.
        columns: Names of those that become fields, in this order; values of others are not decoded. None, the
            default, takes all.
        decode: Open images. False leaves the bytes of those that are files (``jpeg``, ``png``), and lists of
            them, to be decoded by a ``.map`` of yours or kept as they are; ``pil`` has pixels alone, and
            stays an image.
        storage_options: As of ``from_urls``, and so are the others.
        network: Time-outs, retries and hedging.
        renew: For signed URLs that expire; not called for the index, which is read now.
        cache_dir: Keep shards of servers in this folder.
        cache_limit: Most bytes kept there.

    Raises:
        TypeError: An option is of a wrong type.
        ValueError: No index in a local folder, no shard in it, an unknown scheme or storage option, a folder
            that cannot hold a cache, or ``renew`` where shards are not behind http(s).
        StoreError: The index cannot be read.
        FormatError: The index is not sound, of another version, of shards that are no MDS, in an encoding or
            compression that is not known; or a column that is wanted is a pickle, which is not read, or not
            there.
    """
    selection = replace(make_selection(columns, None), decode=decode)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)

    def parse(folder: IndexedFolder, content: bytes) -> tuple[Iterable[IndexedShard], None]:
        return parse_mds_index(content, selection, folder.has if folder.is_local else None), None

    return dataset_of(_open_shards("mds", root, split, access, selection, parse))


def _expected(shard: IndexedShard) -> Expected:
    digest, raw, unpacked = _digest_of(shard.file), shard.raw, None
    if raw is not None:
        assert raw.size_bytes is not None
        # Bytes that are right become what is right.
        unpacked = Unpacked(raw.size_bytes, _digest_of(raw) if digest is None else None)
    return Expected(shard.file.size_bytes, shard.samples, offsets=(), hashed=digest, unpacked=unpacked)


def _digest_of(file: IndexedFile) -> tuple[str, bytes] | None:
    """The cheapest digest that can be computed here; None where the index has none that is known."""
    known = [name for name in ALGORITHMS if name in file.hashes]
    if not known:
        return None
    name = next(filter(open_digest, known), known[0])
    text = file.hashes[name]
    try:
        if 0 < len(text) <= _MOST_DIGITS:
            return name, bytes.fromhex(text)
    except ValueError:
        pass
    raise FormatError(
        f"index: {file.basename[:80]!r}: the {name} should be hexadecimal digits, found {text[:80]!r}"
    )


# Of sha512, and no digest here has more.
_MOST_DIGITS = 128


def from_litdata(
    root: str | os.PathLike[str],
    *,
    block_size: int | None = None,
    columns: Iterable[str] | None = None,
    decode: bool = True,
    concurrency: int = 1,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """A recipe that streams the samples of chunks that LitData's ``optimize`` has written.

    Its ``index.json`` is read now, once; it tells the chunks, how many samples each has, and what they are,
    so that ``len(loader)`` is exact and lanes are of equal length. A sample is a dict: theirs, where it was
    one; of a list or tuple with the keys ``"0"``, ``"1"`` and so on; of any other value with the key
    ``"value"``; a block of tokens with the key ``"tokens"``. Arrays and tensors are NumPy arrays of the
    shapes and dtypes that were written, of which the loader makes tensors; Pillow's images are such.

    Args:
        root: URL or path of the folder with ``index.json``, of any scheme that ``from_urls`` knows.
        block_size: How many tokens make a sample, of chunks written for ``TokensLoader``, and only of those:
            ``tokens`` is then an array ``(block_size,)``. What is left at the end of a chunk is left out, as
            by LitData.
        columns: Names of the fields that samples are to have, in this order; the values of others are not
            looked at. None, the default, takes all.
        decode: Make arrays of images: ``jpeg`` and ``image`` become ``(3, H, W) uint8`` in RGB, turned as
            their Exif says, ``jpeg_array`` a list of such, TIFF what ``tifffile`` makes of it. False leaves
            the bytes of their files, to be decoded by a ``.map`` of yours.
        concurrency: How many samples at a time have images decoded, in each lane, on threads. 1, as in
            ``.map``.
        storage_options: As of ``from_urls``.
        network: As of ``from_urls``.
        renew: As of ``from_urls``.
        cache_dir: As of ``from_urls``.
        cache_limit: As of ``from_urls``.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: ``concurrency`` is below 1; ``block_size`` is missing where chunks hold tokens, or given
            where they do not; a column that samples do not have; no index in a local folder, no chunk in it,
            an unknown scheme or storage option, or a folder that cannot hold a cache.
        ImportError: While iterating: a package that decodes is not installed.
        StoreError: The index cannot be read.
        FormatError: The index is not sound; or the chunks are encrypted, hold pickles or values of
            serializers that are not known, or are made for another item loader. The message says what to do.
    """
    selection = make_selection(columns, None)
    concurrency = as_count("concurrency", concurrency)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)
    if block_size is not None:
        block_size = as_count("block_size", block_size)

    def parse(folder: IndexedFolder, content: bytes) -> tuple[Iterable[IndexedShard], ChunkSchema]:
        index = parse_litdata_index(content, block_size)
        index.schema.check_columns(selection.columns)
        return index.chunks, index.schema

    shards = _open_shards("litdata", root, None, access, selection, parse)
    media = decoder_of(shards.schema.tree, shards.schema.leaves, selection.columns) if decode else None
    return dataset_of(shards) if media is None else dataset_of(shards).map(media, concurrency=concurrency)


Urls: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

#: By format: what reads a folder of it by its ``index.json``.
_FOLDERS: Mapping[str | None, Callable[..., Dataset]] = MappingProxyType(
    {"mds": from_mds, "litdata": from_litdata}
)


def is_folder(format: str | None, block_size: int | None) -> bool:
    """Whether one URL names all shards of this format: that of the folder with their index.

    Raises:
        ValueError: ``block_size`` is for LitData's chunks alone.
    """
    if block_size is not None and format != "litdata":
        raise ValueError("block_size (--block-size) is for LitData's chunks of tokens: name format 'litdata'")
    return format in _FOLDERS


def open_shards(urls: Urls, format: str | None, **options: Any) -> Shards:
    """What such a recipe begins with, for those who do something else with it; as ``open_recipe``."""
    source = recipe_of(open_recipe(urls, format, **options)).source
    assert isinstance(source, Shards), "it begins with shards"
    return source


def open_recipe(
    urls: Urls,
    format: str | None,
    *,
    block_size: int | None = None,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
    decode: bool = False,
    index: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Dataset:
    """The recipe of the shards that are named.

    Args:
        urls: As ``from_urls`` takes them; of MDS and LitData, if they are named, the folder of all shards.
        format: None to go by the suffixes.
        block_size: Tokens of a sample, of LitData's chunks that hold such.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        columns: Names of the fields that are wanted; None for all. No others are read where all formats can
            do so; elsewhere these are picked from the samples.
        decode: Whether images become such while shards are read, where a format does that.
        index: Where it is, if it is not to be found as ``from_urls`` finds it.
        options: Others that all of these recipes take.

    Raises:
        ValueError: Several URLs, or an index, where there is one folder; ``block_size`` for another format.
        Exception: What ``from_urls``, ``from_mds`` and ``from_litdata`` raise.
    """
    if is_folder(format, block_size):
        if delimiter is not None:
            raise ValueError(f"delimiter is what separates the fields of CSV, and format {format!r} has none")
        root = _the_one(read_urls(urls), format, index)
        if block_size is not None:
            options["block_size"] = block_size
        return _FOLDERS[format](root, columns=columns, decode=decode, **options)
    place = BESIDE if index is None else index
    source = recipe_of(from_urls(urls, format=format, delimiter=delimiter, index=place, **options)).source
    assert isinstance(source, Shards), "it begins with shards"
    selection = columns_of_all(columns, source.formats)
    dataset = dataset_of(replace(source, selection=replace(selection, decode=decode)))
    return dataset if columns is None or selection.columns is not None else dataset.select_columns(*columns)


def _the_one(names: Sequence[str], format: str | None, index: object) -> str:
    """The folder of all shards.

    Raises:
        ValueError: There are several, or an index beside its index.
    """
    if len(names) > 1:
        raise ValueError(
            f"format {format!r} takes one URL, that of the folder with the index.json, but got {len(names)}; "
            "shards that are named one by one tell their format by their suffixes"
        )
    if index is not None:
        raise ValueError(
            f"an index is for shards without an index.json, and format {format!r} is of those with one: "
            "leave it out"
        )
    return names[0]
