"""Datasets of folders with an index, as other libraries write them, and datasets by the name of a format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import FormatError, StoreError
from ..formats import columns_of_all
from ..formats.decoder import Selection
from ..formats.digest import ALGORITHMS, open_digest
from ..formats.litdata import ChunkSchema, MediaDecoder, parse_litdata_index
from ..formats.mds import parse_mds_index
from ..formats.offsets import IndexedFile, IndexedShard
from ..formats.selection import make_selection
from ..quantity import as_count
from ..shards.catalog import BESIDE
from ..shards.expectations import Expectations, Expected
from ..shards.index_check import FolderIndex
from ..shards.index_lookup import open_local_index
from ..stores.expanding import expand_home, read_urls
from ..stores.listing import look
from ..stores.names import RunLengths, ShardNames
from ..stores.router import check_storage_options
from ..stores.store import Access, NetworkPolicy, Renew
from ..stores.urls import check_web_url, local_path, redact, scheme_of
from ..types import Unpacked
from .dataset import Dataset, dataset_of, stages_of
from .from_urls import check_renewed, from_urls, make_access
from .shards import Shards

_INDEX_NAME = "index.json"

# The index of some 400,000 shards; as much as is fetched of a server.
_MOST_INDEX_BYTES = 256 << 20


def _url_in(folder: str, name: str) -> str:
    """The URL of a file that an index names.

    Args:
        folder: The URL of the folder that the index is in.
        name: Below the folder, with ``/`` between the parts.

    Raises:
        FormatError: The name is outside of the folder.
    """
    if name.startswith("/") or "\0" in name or {"", ".", ".."} & {*name.split("/")}:
        raise FormatError(
            f"an index should name files below its own folder, found {name[:80]!r}", shard=redact(folder)
        )
    return _below(folder, name)


def _read_index(url: str, access: Access, what: str) -> bytes:
    """Read the index of a folder.

    Args:
        url: Of the index.
        access: To it.
        what: For messages: which folders have an index, and what to do with one that has none.

    Raises:
        ValueError: A local folder has no index.
        StoreError: The index cannot be read.
    """
    if not scheme_of(url).is_local:
        try:
            return look((), access.options, network=access.network, fetch=[url]).fetched[0]
        except StoreError as error:
            error.add_note(what)
            raise
    path = local_path(url)
    with open_local_index(path) as file:
        if file is None and not os.path.lexists(path):
            raise ValueError(f"there is no {path!r}: {what}")
        content = b"" if file is None else file.read(_MOST_INDEX_BYTES + 1)
    if file is None or len(content) > _MOST_INDEX_BYTES:
        most = f"{_MOST_INDEX_BYTES >> 20} MiB"
        raise StoreError(f"{_INDEX_NAME} should be a file of at most {most}", shard=path)
    return content


def _open_shards(
    format: str,
    root: str | os.PathLike[str],
    split: str | None,
    access: Access,
    selection: Selection,
    parse: Callable[[str, bytes], tuple[Iterable[IndexedShard], Any]],
) -> Shards:
    """The shards of the folder that the user means, as its index lists them.

    Args:
        format: The expected format of the index.
        root: See ``_folder_url``.
        split: See ``_folder_url``.
        access: To the index and to the shards.
        selection: What is wanted of the shards.
        parse: Returns the shards for the folder's URL and its index, and the types of their samples.

    Raises:
        TypeError: See ``_folder_url``.
        ValueError: See ``_folder_url``; a local folder has no index, an index has no shard, or ``renew`` is
            given and nothing is behind http(s).
        StoreError: The index cannot be read.
        FormatError: The index is damaged.
    """
    folder = _folder_url(root, split, access.options)
    check_renewed(access, [scheme_of(folder)])
    makers, how = _INDEXES[format]
    what = (
        f"a folder of {makers} has an index.json; where it is of several parts, each in a folder of its own, "
        f"name one of them{how}, or join datasets with al.concat"
    )
    index_url = _below(folder, _INDEX_NAME)
    content = _read_index(index_url, access, what)
    try:
        found, schema = parse(folder, content)
        shards = [*found]
        urls = tuple(_url_in(folder, shard.file.basename) for shard in shards)
        # A plan finds any sample, so there are no offsets.
        expected = Expectations.of(map(_expected, shards))
    except FormatError as error:
        error.shard = redact(index_url)
        raise
    if not urls:
        raise ValueError(f"there is no shard in {redact(index_url)}")
    formats = RunLengths.of(shard.format for shard in shards)
    index = FolderIndex(index_url, schema, schema is not None and schema.may_be_older)
    return Shards(ShardNames([urls]), formats, access, expected, selection, index=index)


def _folder_url(root: str | os.PathLike[str], split: str | None, options: Mapping[str, Any]) -> str:
    """The URL of the folder that the user means, without a look at it.

    Args:
        root: Its URL or path.
        split: A folder below it; None for itself.
        options: Storage options, which are checked.

    Raises:
        TypeError: No strings, or an option has a wrong type.
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
    check_storage_options({scheme}, options)
    return _below(url, "/".join(parts)) if parts else url


# By format: who writes it, and another way to name a folder.
_INDEXES = {"mds": ("MDS", ", by its URL or with split="), "litdata": ("LitData's chunks", "")}


def _below(url: str, name: str) -> str:
    """The URL of something below a folder; a signature in the query stays at the end."""
    if "://" not in url:
        return os.path.join(url, name)
    if scheme_of(url).is_web:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
    # Keys of object stores have no escapes, those of file:// have.
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
    """Make a dataset that streams a folder in the format MDS of MosaicML's ``streaming``.

    The ``index.json`` of the folder is read now, once; for servers a separate process does this. It has the
    number of samples of each shard, so ``len(loader)`` is exact and all lanes are equally long. The length of
    each shard is compared with the index, and the digest too if a whole shard is read. Without a
    ``.shuffle``, samples come in the order of the shards. Values are those of ``streaming``.

    Args:
        root: URL or path of the folder with the index, as for ``from_urls``, without braces and globs. Join
            the datasets of several folders (streams) with ``concat`` or ``mix``.
        split: Name of a folder below it, such as ``"train"``. None, the default: ``root`` itself.
        columns: Names of the columns that become fields, in this order; other columns are not decoded. None,
            the default: all columns.
        decode: Open images. False: keep the bytes of image files (``jpeg``, ``png``) and lists of them, for
            example to decode them in a ``.map``. A ``pil`` has only pixels, and is always an image.
        storage_options: Endpoint, credentials and headers, as for ``from_urls``.
        network: Time-outs, retries and hedging, as for ``from_urls``.
        renew: A function for presigned URLs that expire, as for ``from_urls``. It is not called for the
            index.
        cache_dir: A folder that keeps whole shards of servers, as for ``from_urls``.
        cache_limit: The most bytes in that folder, as for ``from_urls``.

    Returns:
        The dataset, without operators.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: A local folder has no index, or the index has no shard; a scheme or storage option is
            unknown; the folder cannot hold a cache; or ``renew`` is given without http(s).
        StoreError: The index cannot be read.
        FormatError: The index is damaged or has another version; shards are not MDS, or have an unknown
            encoding or compression; or a column does not exist or is a pickle, which is not read.
    """
    selection = replace(make_selection(columns, None), decode=decode)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)

    def parse(folder: str, content: bytes) -> tuple[Iterable[IndexedShard], None]:
        def is_there(name: str) -> bool:
            return os.path.exists(local_path(_url_in(folder, name)))

        return parse_mds_index(content, selection, is_there if scheme_of(folder).is_local else None), None

    return dataset_of(_open_shards("mds", root, split, access, selection, parse))


def _expected(shard: IndexedShard) -> Expected:
    digest, raw, unpacked = _digest_of(shard.file), shard.raw, None
    if raw is not None:
        assert raw.size_bytes is not None
        # If the digest of the packed bytes is right, so are the unpacked ones.
        unpacked = Unpacked(raw.size_bytes, _digest_of(raw) if digest is None else None)
    return Expected(shard.file.size_bytes, shard.samples, offsets=(), hashed=digest, unpacked=unpacked)


def _digest_of(file: IndexedFile) -> tuple[str, bytes] | None:
    """The cheapest digest that can be computed here; None if the index has no known one."""
    known = [name for name in ALGORITHMS if name in file.hashes]
    if not known:
        return None
    name = next(filter(open_digest, known), known[0])
    text = file.hashes[name]
    if not _DIGEST.fullmatch(text):
        raise FormatError(
            f"index: {file.basename[:80]!r}: the {name} should be hexadecimal digits, found {text[:80]!r}"
        )
    return name, bytes.fromhex(text)


# The longest is sha512.
_DIGEST = re.compile("([0-9A-Fa-f]{2}){1,64}")


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
    """Make a dataset that streams the samples of chunks that LitData's ``optimize`` has written.

    The ``index.json`` of the folder is read now, once. It has the number of samples of each chunk and their
    types, so ``len(loader)`` is exact and all lanes are equally long. A sample is a dict, with the keys that
    were written. Items of a list or tuple have the keys ``"0"``, ``"1"`` and so on, any other value has
    ``"value"``, and a block of tokens has ``"tokens"``. Arrays and tensors become NumPy arrays of the same
    shape and dtype; the loader makes tensors of them. An image of Pillow that was written as ``pil`` is
    returned as one: make an array of it in a ``.map``.

    Args:
        root: URL or path of the folder with ``index.json``, with any scheme of ``from_urls``.
        block_size: Tokens of a sample, for chunks written for ``TokensLoader`` and only for those. ``tokens``
            is then an array ``(block_size,)``. The tokens that remain at the end of a chunk are left out, as
            in LitData.
        columns: Names of the fields of a sample, in this order; other fields are not decoded. None, the
            default: all fields.
        decode: Make arrays of image files. ``jpeg`` and ``image`` become ``(3, H, W) uint8`` in RGB, rotated
            by their Exif data, ``jpeg_array`` becomes a list of these, and TIFF what ``tifffile`` returns.
            False: keep the bytes of the files, for example to decode them in a ``.map``.
        concurrency: The most samples whose images are decoded at a time, in each lane, on threads. 1 by
            default, as for ``.map``.
        storage_options: Endpoint, credentials and headers, as for ``from_urls``.
        network: Time-outs, retries and hedging, as for ``from_urls``.
        renew: A function for presigned URLs that expire, as for ``from_urls``. It is not called for the
            index.
        cache_dir: A folder that keeps whole chunks of servers, as for ``from_urls``.
        cache_limit: The most bytes in that folder, as for ``from_urls``.

    Returns:
        The dataset. If there are images to decode, its only operator does that.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: ``concurrency`` is below 1; ``block_size`` is missing for chunks of tokens, or given for
            others; samples lack a column; a local folder has no index, or the index has no chunks; a scheme
            or storage option is unknown; or the folder cannot hold a cache.
        ImportError: While iterating: a package that decodes images is not installed.
        StoreError: The index cannot be read.
        FormatError: The index is damaged; or the chunks are encrypted, hold pickles or values of unknown
            serializers, or are written for another item loader. The message says what to do.
    """
    selection = make_selection(columns, None)
    concurrency = as_count("concurrency", concurrency)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)
    if block_size is not None:
        block_size = as_count("block_size", block_size)

    def parse(folder: str, content: bytes) -> tuple[Iterable[IndexedShard], ChunkSchema]:
        chunks, schema = parse_litdata_index(content, block_size)
        schema.check_columns(selection.columns)
        return chunks, schema

    shards = _open_shards("litdata", root, None, access, selection, parse)
    dataset, schema = dataset_of(shards), shards.schema
    media = MediaDecoder(schema.tree, schema.leaves, selection.columns)
    return dataset.map(media, concurrency=concurrency) if decode and media.fields else dataset


Urls: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

#: By format: what reads a folder of it by its ``index.json``.
_FOLDERS: dict[str | None, Callable[..., Dataset]] = {"mds": from_mds, "litdata": from_litdata}


def is_folder(format: str | None, block_size: int | None) -> bool:
    """Whether a single URL names all shards of this format: that of the folder with their index.

    Raises:
        ValueError: ``block_size`` is for LitData's chunks alone.
    """
    if block_size is not None and format != "litdata":
        raise ValueError("block_size (--block-size) is for LitData's chunks of tokens: name format 'litdata'")
    return format in _FOLDERS


def open_shards(urls: Urls, format: str | None, **options: Any) -> Shards:
    """The shards of such a dataset; arguments and errors are those of ``open_dataset``."""
    source = stages_of(open_dataset(urls, format, **options)).source
    assert isinstance(source, Shards), "it begins with shards"
    return source


def open_dataset(
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
    """The dataset of the shards that are named.

    Args:
        urls: As for ``from_urls``; for ``format="mds"`` and ``"litdata"``, the folder of all shards.
        format: None to use the suffixes.
        block_size: Tokens of a sample, for LitData's chunks of tokens.
        delimiter: For CSV and TSV, as of ``from_urls``.
        columns: Names of the wanted fields; None for all. If all formats can read single columns, only these
            are read; otherwise they are picked from the samples.
        decode: Whether images are opened while shards are read, if the format does that.
        index: Where it is, if ``from_urls`` should not look for it.
        options: Others that ``from_urls``, ``from_mds`` and ``from_litdata`` all take.

    Raises:
        ValueError: Several URLs, or an index, for a format that is read by folder; ``block_size`` for another
            format.
        Exception: The errors of ``from_urls``, ``from_mds`` and ``from_litdata``.
    """
    if is_folder(format, block_size):
        if delimiter is not None:
            raise ValueError(f"delimiter is what separates the fields of CSV, and format {format!r} has none")
        root, *others = read_urls(urls)
        if others:
            raise ValueError(
                f"format {format!r} takes one URL, that of the folder with the index.json, but got "
                f"{len(others) + 1}; leave the format out for shards that are named one by one"
            )
        if index is not None:
            raise ValueError(
                f"an index is for shards without an index.json, and format {format!r} has one: leave it out"
            )
        if block_size is not None:
            options["block_size"] = block_size
        return _FOLDERS[format](root, columns=columns, decode=decode, **options)
    place = BESIDE if index is None else index
    source = stages_of(from_urls(urls, format=format, delimiter=delimiter, index=place, **options)).source
    assert isinstance(source, Shards), "it begins with shards"
    selection = columns_of_all(columns, source.formats)
    dataset = dataset_of(replace(source, selection=replace(selection, decode=decode)))
    return dataset if columns is None or selection.columns is not None else dataset.select_columns(*columns)
