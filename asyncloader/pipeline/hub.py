"""Datasets of data sets on the Hugging Face hub, by their names, configurations and splits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import numpy as np

from ..errors import StoreError
from ..formats import check_selection
from ..formats.selection import make_selection
from ..stores.hub import CONVERTED, Sets, arrange, parse_hub_url
from ..stores.listing import look
from ..stores.names import RunLengths, ShardNames
from ..stores.router import check_storage_options
from ..stores.store import Access, NetworkPolicy
from ..stores.urls import scheme_of
from .dataset import Dataset, dataset_of
from .from_urls import make_access
from .shards import Shards, count_shards

_MAIN = "main"
_FORMAT = "parquet"

# Footers requested at a time: each takes two round trips, and next to no bytes.
_COUNTED_AT_ONCE = 16


def from_hub(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    columns: Iterable[str] | None = None,
    filters: Any = None,
    counts: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """Make a dataset that streams a split of a data set on the Hugging Face hub, from its Parquet files.

    The list of files is requested now. The hub has converted most data sets to Parquet. That conversion is
    used if it has the whole split, and the Parquet files of the data set itself otherwise.

    Args:
        name: The data set, as ``OWNER/NAME``.
        split: Name of the split; most data sets have ``"train"``. If the hub has converted only a part of a
            split, ``"partial-train"`` names that part.
        config: The configuration (or subset). None, the default: the only one, or the one named ``default``.
        revision: A branch, tag or commit whose Parquet files are read. None, the default: the conversion, or
            else ``main``.
        columns: Names of the columns that become fields, in this order; only these are requested. None, the
            default: all columns.
        filters: Which rows to keep, as for ``from_urls``.
        counts: Read the number of rows from the footer of each file now, with two requests a file. Then
            ``len(loader)`` is exact, and all lanes have the same number of samples. False by default, which
            saves these requests.
        storage_options: ``token`` and ``endpoint``. None: those of the environment and of the hub's own
            files; see ``docs/reference/urls.md``.
        network: Time-outs, retries and hedging, as for ``from_urls``.
        cache_dir: A folder that keeps whole files, as for ``from_urls``.
        cache_limit: The most bytes in that folder, as an int or as ``"200GB"``; 64 GiB by default.

    Returns:
        The dataset, without operators.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: A name, option, column or filter is not valid; or there is no such configuration or split,
            and the message lists those that exist.
        ImportError: pyarrow is not installed.
        StoreError: There is no such data set or revision, access is refused, or the hub cannot be reached.
        FormatError: With ``counts``, a file is not valid Parquet.
    """
    for option, value in {"name": name, "split": split, "config": config, "revision": revision}.items():
        if not isinstance(value, str) and (value is not None or option in ("name", "split")):
            raise TypeError(f"{option} should be a string, but got {type(value).__name__}")
    selection = make_selection(columns, filters)
    check_selection(selection, [_FORMAT])
    access = make_access(storage_options, network, None, cache_dir, cache_limit)
    check_storage_options({scheme_of(_folder(name, revision or _MAIN))}, access.options)
    found = _find(name, split, config, [CONVERTED, _MAIN] if revision is None else [revision], access)
    names, formats = ShardNames([tuple(found)]), RunLengths([(_FORMAT, len(found))])
    sizes = np.array([*found.values()], np.int64)
    shards = Shards(names, formats, access, selection=selection, sizes=sizes)
    if counts:
        checks = count_shards(shards, {}, lambda number, found: None, at_once=_COUNTED_AT_ONCE)
        shards = replace(shards, checks=checks)
    return dataset_of(shards)


def _folder(name: str, revision: str) -> str:
    """The URL of all files of a data set on the hub.

    Raises:
        ValueError: No name of a data set, or of a revision.
    """
    quoted = revision if revision.startswith("refs/") else revision.replace("/", "%2F")
    url = f"hf://datasets/{name}@{quoted}/"
    try:
        place = parse_hub_url(url)
    except ValueError:
        place = None
    if place is None or (place.dataset, place.path) != (name, ""):
        raise ValueError(
            "a data set of the hub should be named 'OWNER/NAME', and revision= a branch, tag or commit, but "
            f"got {name!r} and {revision!r}"
        )
    return url


def _find(
    name: str, split: str, config: str | None, revisions: Sequence[str], access: Access
) -> dict[str, int]:
    """The URLs of the split's files and their lengths, in the first revision that has it.

    Raises:
        ValueError: No revision has it; the message lists what they have.
    """
    there: list[tuple[str, Sets]] = []
    for revision in revisions:
        folder = _folder(name, revision)
        try:
            # All files are listed: a folder without files of data is no error.
            (match,) = look([folder], access.options, network=access.network).matches
        except StoreError as error:
            # There may be no conversion, or only that; one of the two has to exist.
            if error.status != HTTPStatus.NOT_FOUND or (revision == revisions[-1] and not there):
                raise
            continue
        sets = arrange((url.removeprefix(folder) for url in match.urls), revision)
        if paths := sets.find(config, split):
            lengths = dict(zip(match.urls, match.sizes or (), strict=True))
            return {url: lengths[url] for url in (folder + path for path in paths)}
        there.append((revision, sets))
        if config is None and sets.files and sets.meant(None) is None:
            break  # another revision may have only one configuration, which may not be the one that is meant
    raise ValueError(_nothing(name, split, config, there))


def _nothing(name: str, split: str, config: str | None, there: Sequence[tuple[str, Sets]]) -> str:
    """The message for a split that no revision has."""
    found = [f"{revision!r} has {sets.describe()}" for revision, sets in there if sets.files]
    if not found:
        return (
            f"{name} has no Parquet files on the hub, and no conversion to them; name files of other formats "
            f"as from_urls('hf://datasets/{name}/...')"
        )
    if config is None and any(sets.files and sets.meant(None) is None for _, sets in there):
        what = f"{name} has several configurations: choose one by config="
    else:
        wanted = f"split {split!r}" + (f" of config {config!r}" if config is not None else "")
        what = f"{name} has no {wanted} in Parquet"
    return f"{what}; {'; '.join(found)}"
