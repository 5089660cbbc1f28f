"""Decoders of shard formats: feed bytes, get blocks of samples. Pure: no await, no I/O, no clock.

A new format is a new file with a class that derives from :class:`.decoder.Decoder`, and one row in
``formats``. A format that is not read from front to back has a plan instead: a generator that requests the
spans of bytes that it must see, and returns the spans to read, with the decoder that gets them. A format may
have both: a plan for parts of a shard, and a decoder for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..types import Planning
from .arrow import plan_arrow
from .arrow_columns import check_pyarrow
from .csv_records import check_delimiter, open_csv
from .decoder import EVERYTHING, Decoder, Selection, ShardSpec
from .lines import open_jsonl, open_text
from .litdata import open_litdata, plan_litdata
from .mds import COMPRESSIONS, open_mds, open_packed_mds, plan_mds
from .npy import plan_npy
from .npz import plan_npz
from .parquet import plan_parquet
from .selection import make_selection
from .tar import open_tar
from .tar_layout import ZERO_BLOCK
from .tfrecord import masked_crc32c, open_tfrecord


class Format(NamedTuple):
    """A row of the table.

    Attributes:
        suffixes: Endings of the file names, in lower case; a compression's suffix may follow. None for a
            format whose shards are described by an index beside them.
        open: Makes the decoder of a shard that is read from front to back; None for a format with only a
            plan.
        plan: Makes the plan of what to read of a shard, or None if all of it is better read from front to
            back; None for a format that always is.
        options: The options of ``from_urls`` that it takes: ``"columns"`` if some can be chosen (shards that
            are compressed as a whole have a row of their own then); ``"filters"`` of rows, by pyarrow, which
            decodes without the interpreter's lock; the ``"delimiter"`` of fields.
        close: What a decoder is fed in place of the following samples, so that it returns the last one before
            them.
        may_be_empty: Whether a shard of no bytes has no samples, rather than being truncated.
        reopens: Whether a plan reads at most a part of a group of samples before the wanted ones.
    """

    suffixes: tuple[str, ...]
    open: Callable[[ShardSpec], Decoder] | None = None
    plan: Callable[[ShardSpec], Planning | None] | None = None
    options: tuple[str, ...] = ()
    close: bytes = b""
    may_be_empty: bool = False
    reopens: bool = False


_COLUMNS, _ARROW = ("columns",), ("columns", "filters")

formats: Mapping[str, Format] = MappingProxyType(
    {
        # A sample of tar is complete when a member of the next one begins, or at the end.
        "tar": Format((".tar",), open_tar, close=ZERO_BLOCK),
        "jsonl": Format((".jsonl", ".ndjson"), open_jsonl, may_be_empty=True),
        "text": Format((".txt", ".text"), open_text, may_be_empty=True),
        "csv": Format((".csv",), open_csv, options=("delimiter",)),
        "tsv": Format((".tsv",), partial(open_csv, usual="\t"), options=("delimiter",)),
        "parquet": Format((".parquet", ".pq"), plan=plan_parquet, options=_ARROW, reopens=True),
        "arrow": Format((".arrow", ".feather", ".ipc"), plan=plan_arrow, options=_ARROW),
        # Before "mds", whose suffix their names have too.
        **{
            f"mds.{family}": Format((f".mds.{family}",), partial(open_packed_mds, family), options=_COLUMNS)
            for family in COMPRESSIONS
        },
        "mds": Format((".mds",), open_mds, plan_mds, _COLUMNS, reopens=True),
        "npy": Format((".npy",), plan=plan_npy, options=_COLUMNS, reopens=True),
        "npz": Format((".npz",), plan=plan_npz, options=_COLUMNS, reopens=True),
        "tfrecord": Format((".tfrecord", ".tfrecords"), open_tfrecord, may_be_empty=True),
        "litdata": Format((), open_litdata, plan_litdata, _COLUMNS),
    }
)


compression_suffixes = MappingProxyType({".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"})

# Of tar alone.
_SHORT_SUFFIXES = {".tgz": "gzip", ".tzst": "zstd", ".txz": "xz", ".tbz2": "bzip2"}

# The format and the compression that the end of a name stands for.
_endings: dict[str, tuple[str, str | None]] = {
    suffix + more: (name, compression)
    for name, row in reversed([*formats.items()])  # where two rows have the same one, the first counts
    for suffix in row.suffixes
    for more, compression in {"": None, **compression_suffixes}.items()
}
_endings |= {suffix: ("tar", compression) for suffix, compression in _SHORT_SUFFIXES.items()}
_ENDING = re.compile(rf"(?:{'|'.join(map(re.escape, _endings))})\Z")


def format_of(path: str) -> str:
    """The format that a URL's or path's suffix names.

    Args:
        path: URL or path of a shard; a query or fragment is ignored.

    Returns:
        A name in ``formats``.

    Raises:
        ValueError: There is no known suffix; the message lists them. Or the suffix is that of a compressed
            shard, in a format that is not compressed as a whole.
    """
    name, compression = split_suffix(path)
    if compression is not None and "columns" in formats[name].options:
        inside = f"; {name} compresses its columns inside" if "filters" in formats[name].options else ""
        raise ValueError(
            f"{path.rpartition('/')[2]!r} is compressed as a whole, which {name} does not support: "
            f"decompress it{inside}"
        )
    return name


def has_format(path: str) -> bool:
    """Whether a URL's or path's suffix names a format."""
    return bool(ending_of(path))


def ending_of(path: str) -> str:
    """The end of a URL or path that names format and compression, in lower case; empty if there is none."""
    found = _ENDING.search(_without_query(path).lower())
    return "" if found is None else found[0]


def _without_query(path: str) -> str:
    # Any key of a bucket may be asked about, so not urlsplit, which raises for some.
    return re.split("[?#]", path, maxsplit=1)[0] if "://" in path else path


def split_suffix(path: str) -> tuple[str, str | None]:
    """The format and the compression that a suffix names; None for no compression.

    Raises:
        ValueError: There is no known suffix; the message lists them.
    """
    if ending := ending_of(path):
        return _endings[ending]
    # Only the last part of the path: the part before it may hold secrets.
    raise ValueError(
        f"cannot tell the format of {_without_query(path).rpartition('/')[2]!r}: expected "
        f"{known_suffixes()}; or name the format by format="
    )


def compression_named(path: str) -> str | None:
    """The compression that the end of a path names, whatever stands before it; None if there is none."""
    endings = {**compression_suffixes, **_SHORT_SUFFIXES}
    return next((endings[end] for end in endings if path.lower().endswith(end)), None)


def may_be_empty(name: str, path: str) -> bool:
    """Whether a shard of no bytes is complete: its format has no marks, and it is not compressed.

    Args:
        name: Its format.
        path: Its path, without query and fragment.
    """
    return formats[name].may_be_empty and compression_named(path) is None


def known_suffixes() -> str:
    """The usual endings that name a format, for messages."""
    usual = [row for name, row in formats.items() if not name.startswith("mds.")]
    streams = [suffix for row in usual if "columns" not in row.options for suffix in row.suffixes]
    planned = [suffix for row in usual if "columns" in row.options for suffix in row.suffixes]
    return (
        f"a name that ends with one of {', '.join(streams)}, alone or with "
        f"{', '.join(compression_suffixes)} after it, or one of {', '.join(planned)}"
    )


def check_format(name: str) -> None:
    """Refuse a name that is not that of a format without an index.

    Raises:
        ValueError: It is no name in ``formats``, or the format needs an index.
    """
    known = [repr(each) for each, row in formats.items() if row.suffixes]
    indexed = [repr(each) for each, row in formats.items() if not row.suffixes]
    if name not in [*formats]:  # it may be of any type, even a list
        raise ValueError(
            f"format must be one of {', '.join(known)}, or, for a folder with its index.json, "
            f"{' or '.join(indexed)}, not {name!r}"
        )
    if not formats[name].suffixes:
        raise ValueError(f"{name} is read by an index.json: give its folder to al.from_{name}")


def open_decoder(name: str, **spec: Any) -> Decoder:
    """A decoder for one shard, from its start or from a position in its middle.

    Args:
        name: A name in ``formats``, of a format that needs no plan.
        spec: See ``ShardSpec``.

    Returns:
        A decoder whose trails count from the start of the shard.

    Raises:
        ValueError: A number is negative.
    """
    open_shard, wanted = formats[name].open, ShardSpec(**spec)
    assert open_shard is not None, f"{name} is not read from front to back"
    if min(wanted.start_sample, wanted.start_byte, wanted.skip) < 0:
        raise ValueError(f"start_sample, start_byte and skip must be 0 or more, not {spec}")
    return open_shard(wanted)


def open_plan(name: str, **spec: Any) -> Planning | None:
    """The plan of what to read of one shard; None if it is read from front to back.

    Args:
        name: A name in ``formats``.
        spec: See ``ShardSpec``. ``start_sample`` counts the shard's samples, whatever a filter keeps.
    """
    plan = formats[name].plan
    return None if plan is None else plan(ShardSpec(**spec))


def columns_of_all(columns: Iterable[str] | None, names: Iterable[str]) -> Selection:
    """The selection that reads only these columns, if all formats can do so.

    Args:
        columns: Names of fields; None for all.
        names: The formats of the shards.

    Returns:
        ``EVERYTHING`` if nothing is chosen, or if a shard is read from front to back: then fields are picked
        from its samples later.

    Raises:
        TypeError, ValueError: See ``make_selection``.
    """
    if columns is None or not all("columns" in formats[name].options for name in {*names}):
        return EVERYTHING
    return make_selection(columns, None)


def check_delimited(delimiter: str | None, names: Iterable[str]) -> None:
    """Refuse a delimiter that is not valid, or for shards without delimiters.

    Args:
        delimiter: What separates the fields of CSV; None for the usual one.
        names: The formats of the shards.

    Raises:
        TypeError, ValueError: See ``check_delimiter``; or a format has no delimiter.
    """
    if delimiter is None:
        return
    check_delimiter(delimiter)
    if others := [name for name in dict.fromkeys(names) if "delimiter" not in formats[name].options]:
        delimited = " and ".join(name for name, row in formats.items() if "delimiter" in row.options)
        raise ValueError(
            f"delimiter is what separates the fields of {delimited}, but there are shards of "
            f"{' and '.join(others)}; if they are CSV, pass format='csv'"
        )


def check_selection(selection: Selection, names: Iterable[str]) -> None:
    """Refuse columns or filters for formats without them, and a format whose package is missing.

    Args:
        selection: What is wanted.
        names: The formats of the shards.

    Raises:
        ValueError: A format has no columns, or no filters.
        ImportError: A format needs a package that is not installed.
    """
    found = dict.fromkeys(names)
    for option, asked, can in (
        ("columns", selection.columns, [name for name, row in formats.items() if "columns" in row.options]),
        ("filters", selection.filters, [name for name, row in formats.items() if "filters" in row.options]),
    ):
        if asked is not None and (others := [name for name in found if name not in can]):
            raise ValueError(
                f"{option} chooses from the columns of {', '.join(can)}, but there are shards of "
                f"{' and '.join(others)}; use .select_columns(...) and .filter(...) for their samples"
            )
    if any("filters" in formats[name].options for name in found):
        check_pyarrow()
    if "tfrecord" in found:
        masked_crc32c()
