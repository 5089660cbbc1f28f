"""How datasets begin: with the samples of shards, or with iterables of your own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from ..cache.store import cache_setting
from ..formats import check_delimited, check_selection
from ..formats.selection import make_selection
from ..shards.catalog import BESIDE, IndexPlace, make_catalog
from ..shards.index_lookup import has_index_option
from ..stores.names import ShardNames
from ..stores.objects.backend import check_buckets
from ..stores.store import Access, NetworkPolicy, Renew
from ..stores.urls import Scheme
from .dataset import Dataset, dataset_of
from .shards import Shards
from .sources import Iterables, Make


class AsyncIterableDataset:
    """A source of your own: subclass it and write ``async def __aiter__(self)`` as a generator.

    It is iterated once for each lane and epoch, and must yield only that lane's part: ask
    ``get_topology()`` before the first sample. One that does not ask is refused as soon as there is
    more than one lane. Pass it to the loader as it is, or to ``from_iterable`` to add operators.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        raise TypeError(f"{type(self).__name__} should define __aiter__ as an asynchronous generator")


@has_index_option
def from_urls(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    renew: Renew | None = None,
    index: IndexPlace = BESIDE,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    columns: Iterable[str] | None = None,
    filters: Any = None,
) -> Dataset:
    """A dataset that streams the samples of shards.

    Args:
        urls: One URL or path, or several: ``http(s)://``, ``s3://``, ``gs://``, ``az://``,
            ``hf://datasets/``, ``file://`` and plain paths, also with ``~``; with brace ranges
            (``train-{000..127}.tar``), which are the way to name many, and lists (``{a,b}``). Globs and
            prefixes (``s3://bucket/train/``) of all but web servers are looked up now, once, and their
            matches sorted; for object stores in a process of its own. So are the lengths of up to 10,000
            local files, by which lanes are dealt whole shards where there is no index.
        format: ``"tar"``, ``"jsonl"``, ``"text"``, ``"csv"``, ``"tsv"``, ``"parquet"``, ``"arrow"``,
            ``"mds"``, ``"npy"``, ``"npz"`` or ``"tfrecord"``, for shards whose suffix does not tell. A
            compression is found by content.
        delimiter: Of CSV and TSV: the one character that separates fields, such as ``";"``. None, the
            default, is a comma in CSV and a tab in TSV.
        storage_options: Endpoint, region, credentials, headers; see ``docs/reference/urls.md``.
        network: Time-outs, retries and hedging; the default suits stores near and far.
        renew: For presigned URLs that expire: called with a shard's URL when the server refuses it (400,
            401, 403), and gives one that is signed anew. Plain functions run on a thread, coroutine
            functions on the loader's loop. Not called for a presigned ``index``, which is read now.
        index: Where the shards' ``asyncloader-index.json`` is, against which each of them is checked. By
            default it is found by itself beside local shards, in folders that are looked into anyway, and,
            with one request, in the folder that all shards of a web server have in common. None looks for
            none.
        cache_dir: Keep shards of servers in this folder, whole, for later epochs and runs and for all
            processes of the machine. None, the default, keeps nothing: not every disk has room.
        cache_limit: Most bytes kept there, as an int or as ``"200GB"`` or ``"1 TiB"``; 64 GiB by default.
        columns: Of Parquet, Arrow, MDS and arrays of NumPy: names of the columns that become fields, in this
            order. Of Parquet and ``.npz`` no others are requested. None, the default, takes all.
        filters: Of Parquet and Arrow: keep the rows that meet an expression of ``pyarrow.compute``, such as
            ``pc.field("n") > 3``, or a list of tuples ``("n", ">", 3)`` that must all hold, or of such lists,
            of which one must hold. Of Parquet, row groups that have no such row by their statistics are not
            requested. A column may be filtered by and not be among ``columns``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths, or an option is of a wrong type.
        ValueError: No shard, an unknown scheme, format or storage option, a glob or prefix without a
            match, an index that does not know a shard, a folder that cannot hold a cache, ``renew`` where
            no shard is behind http(s), ``columns`` or ``filters`` for a format without columns, or
            ``delimiter`` for another than CSV and TSV.
        ImportError: Shards are Parquet or Arrow, and pyarrow is not installed.
        StoreError: A server cannot be asked for a listing, or an index not be read; or a folder, glob or
            prefix lacks shards that its index lists. Names, lists and braces are taken for a selection.
        FormatError: The index is not sound.
    """
    selection = make_selection(columns, filters)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)

    def check(names: ShardNames, formats: Sequence[str], schemes: Iterable[Scheme]) -> None:
        check_buckets(names.examples, access.options)
        check_renewed(access, schemes)
        check_selection(selection, formats)
        check_delimited(delimiter, formats)

    catalog = make_catalog(urls, format, index, access.options, access.network, check)
    return dataset_of(
        Shards(
            catalog.urls,
            catalog.formats,
            access,
            catalog.checks,
            selection,
            sizes=catalog.sizes,
            delimiter=delimiter,
            lacking=catalog.lacking,
        )
    )


def make_access(
    storage_options: Mapping[str, Any] | None,
    network: NetworkPolicy | None,
    renew: Renew | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_limit: int | str | None,
) -> Access:
    """How shards are reached; the arguments are those of ``from_urls``, which raises the same."""
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(  # not what it is: it may hold a key
            "storage_options should be a mapping of names to values, such as {'anonymous': True}, but got "
            f"{type(storage_options).__name__}"
        )
    if network is not None and not isinstance(network, NetworkPolicy):
        raise TypeError(f"network should be a NetworkPolicy, but got {type(network).__name__}")
    if renew is not None and not callable(renew):
        raise TypeError(f"renew should be a function of a URL, but got {type(renew).__name__}")
    cache = cache_setting(cache_dir, cache_limit)
    return Access(dict(storage_options or {}), network or NetworkPolicy(), renew, cache)


def check_renewed(access: Access, schemes: Iterable[Scheme]) -> None:
    """Refuse ``renew`` where no shard is behind a URL that expires.

    Raises:
        ValueError: It is given, and none is.
    """
    if access.renew is not None and not any(scheme.is_renewed for scheme in schemes):
        raise ValueError(
            "renew is for presigned http(s):// URLs, which expire, but none of the shards has one; keys of "
            "an object store that expire are given by storage_options={'credential_provider': function}"
        )


def from_iterable(
    make: Make | Callable[[], Iterable[Any] | AsyncIterable[Any]] | Iterable[Any] | AsyncIterable[Any],
) -> Dataset:
    """A dataset over iterables of your own, plain or asynchronous.

    Args:
        make: A function of a ``Topology`` that gives the iterable of one lane, such as
            ``lambda topology: topology.split(range(1000))``; or an iterable object that asks
            ``get_topology()`` when it is iterated. Of a list, a tuple or another sequence each lane takes its
            part. A function without a parameter does for one lane, and for several if it asks
            ``get_topology()``. While a function or an object is iterated, torch's worker info says
            worker 0 of 1, so that a library below does not split a lane's part once more; an object that
            asks for both is refused with a ``RuntimeError``, since its samples might come twice.

    Raises:
        TypeError: ``make`` is neither.
    """
    if isinstance(make, Dataset):
        raise TypeError("from_iterable should get an iterable, but got a dataset, which needs no more")
    if isinstance(make, AsyncIterator) or (hasattr(make, "__next__") and not callable(make)):
        raise TypeError(
            f"from_iterable should get something that can be iterated in every epoch, but got "
            f"{type(make).__name__}, which runs out; pass a function that makes one"
        )
    if not callable(make) and not isinstance(make, Iterable | AsyncIterable):
        raise TypeError(
            "from_iterable should get an iterable or a function that makes one, "
            f"but got {type(make).__name__}"
        )
    return dataset_of(Iterables(make))
