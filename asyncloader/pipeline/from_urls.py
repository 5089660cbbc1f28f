"""Datasets of shards by their URLs, and how shards are reached."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..cache.store import cache_setting
from ..formats import check_delimited, check_selection
from ..formats.selection import make_selection
from ..shards.catalog import BESIDE, IndexPlace, make_catalog
from ..stores.store import Access, NetworkPolicy, Renew
from ..stores.urls import Scheme
from .dataset import Dataset, dataset_of
from .renamed import INDEX_OPTIONS, with_advice
from .shards import Shards


@with_advice(INDEX_OPTIONS)
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
    """Make a dataset that streams the samples of shards.

    ``print(dataset)`` shows how many shards there are, their format, and how many of them an index knows.

    Example:
        ```python
        import asyncloader as al

        dataset = al.from_urls("shards/train-{000..003}.tar")  # or "s3://bucket/train/", "https://..."
        print(dataset)
        print(dataset.decode().head(2))
        loader = al.DataLoader(dataset.decode().shuffle(1000, seed=0), batch_size=32)
        ```

    Args:
        urls: One URL or path, or several: ``http(s)://``, ``s3://``, ``gs://``, ``az://``,
            ``hf://datasets/``, ``file://`` and plain paths, also with ``~``. To name many shards, use a brace
            range (``train-{000..127}.tar``) or a list in braces (``{a,b}``). Globs and prefixes
            (``s3://bucket/train/``) work everywhere except on web servers. They are looked up now, once, and
            their matches are sorted; for object stores a separate process does this. The lengths of up to
            10,000 local files are looked up too: without an index, whole shards are dealt to lanes by length.
        format: ``"tar"``, ``"jsonl"``, ``"text"``, ``"csv"``, ``"tsv"``, ``"parquet"``, ``"arrow"``,
            ``"mds"``, ``"npy"``, ``"npz"`` or ``"tfrecord"``. None, the default: by the suffix of each shard.
            Compression is detected from the content.
        delimiter: The character that separates the fields of CSV and TSV, such as ``";"``. None, the default:
            a comma in CSV and a tab in TSV.
        storage_options: Endpoint, region, credentials and headers; ``docs/reference/urls.md`` lists them.
            None, the default: those of the environment.
        network: Time-outs, retries and hedging. None, the default: ``NetworkPolicy()``, which suits near and
            distant stores.
        renew: A function for presigned URLs that expire. It is called with the URL of a shard that the server
            refuses (400, 401, 403), and returns a newly signed one. A plain function runs on a thread, a
            coroutine function on the loader's event loop. It is not called for a presigned ``index``, which
            is read now.
        index: URL or path of the ``asyncloader-index.json`` of the shards, with which each shard is compared.
            By default it is looked for beside the shards: in local folders, and with one request in the
            folder that all shards on a web server have in common. None: use no index.
        cache_dir: A folder that keeps whole shards of servers, for later epochs and runs and for all
            processes of the machine. None, the default: keep nothing, since not every disk has room.
        cache_limit: The most bytes in that folder, for all processes together, as an int or as ``"200GB"`` or
            ``"1 TiB"``. 64 GiB by default, some hundred shards of the usual size.
        columns: For Parquet, Arrow, MDS and NumPy: names of the columns that become fields, in this order. In
            Parquet and ``.npz``, only these are requested. None, the default: all columns.
        filters: For Parquet and Arrow: which rows to keep. An expression of ``pyarrow.compute``, such as
            ``pc.field("n") > 3``; a list of tuples such as ``("n", ">", 3)``, all of which must hold; or a
            list of such lists, one of which must hold. Row groups of Parquet that cannot match by their
            statistics are not requested. A filter may use a column that is not in ``columns``.

    Returns:
        The dataset, without operators. No shard is read yet.

    Raises:
        TypeError: ``urls`` has something other than strings and paths, or an option has a wrong type.
        ValueError: There is no shard; a scheme, format or storage option is unknown; a glob or prefix matches
            nothing; the index lacks a shard; the folder cannot hold a cache; or an option does not fit the
            shards: ``renew`` without http(s), ``columns`` or ``filters`` without columns, ``delimiter``
            without CSV or TSV.
        ImportError: Shards are Parquet or Arrow, and pyarrow is not installed.
        StoreError: A listing or an index cannot be read; or a folder, glob or prefix lacks shards that its
            index lists. To read some shards of an index, name them, by a list or by braces.
        FormatError: The index is damaged, or is not an index.
    """
    selection = make_selection(columns, filters)
    access = make_access(storage_options, network, renew, cache_dir, cache_limit)

    def check(formats: Sequence[str], schemes: Iterable[Scheme]) -> None:
        check_renewed(access, schemes)
        check_selection(selection, formats)
        check_delimited(delimiter, formats)

    found = make_catalog(urls, format, index, access.options, access.network, check)
    shards = Shards(found.urls, found.formats, access, found.checks, selection, sizes=found.sizes)
    return dataset_of(replace(shards, delimiter=delimiter, lacking=found.lacking))


def make_access(
    storage_options: Mapping[str, Any] | None,
    network: NetworkPolicy | None,
    renew: Renew | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_limit: int | str | None,
) -> Access:
    """How shards are reached; arguments and errors are those of ``from_urls``."""
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(  # without the value, which may hold a key
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
    """Check that ``renew``, if given, is for shards whose URLs expire.

    Raises:
        ValueError: No shard has such a URL.
    """
    if access.renew is not None and not any(scheme.is_renewed for scheme in schemes):
        raise ValueError(
            "renew is for presigned http(s):// URLs, which expire, but none of the shards has one; for keys "
            "of an object store that expire, give storage_options={'credential_provider': function}"
        )
