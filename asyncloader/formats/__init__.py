"""Decoders of shard formats: feed bytes, get blocks of samples. Pure: no await, no I/O, no clock.

A new format is a new file with a class that satisfies :class:`.decoder.Decoder`, and one row in ``_table``.
One that is not read from front to back has a plan instead: a generator that asks for the spans of bytes that
it must see, and returns those to be read, with the decoder to feed them to. One may have both: a plan for
parts of a shard, and a decoder for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from ..types import Planning, Unpacked
from ._format import Format
from ._open import SkippingDecoder, SniffingDecoder
from ._table import formats
from .columnar.footers import Footers
from .columnar.importing import check_pyarrow
from .columnar.selection import EVERYTHING, Selection, make_selection
from .csv_records import check_delimiter
from .decoder import Decoder, PassOver

__all__ = [
    "Format",
    "check_delimited",
    "check_format",
    "check_selection",
    "columns_of_all",
    "compression_named",
    "compression_suffixes",
    "format_of",
    "formats",
    "has_format",
    "known_suffixes",
    "may_be_empty",
    "open_decoder",
    "open_plan",
    "split_suffix",
]

compression_suffixes = MappingProxyType({".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"})


def format_of(path: str) -> str:
    """The format that a URL's or path's suffix names.

    Args:
        path: URL or path of a shard; a query or fragment after it is not looked at.

    Returns:
        A name in ``formats``.

    Raises:
        ValueError: No known suffix; the message lists them. Or one of a compression, behind that of a format
            that is not compressed as a whole.
    """
    name, compression = split_suffix(path)
    if compression is not None and formats[name].selects:
        inside = f"; {name} compresses its columns inside" if formats[name].by_arrow else ""
        raise ValueError(
            f"{path.rpartition('/')[2]!r} is compressed as a whole, and {name} is not read like that: "
            f"decompress it{inside}"
        )
    return name


def has_format(path: str) -> bool:
    """Whether a URL's or path's suffix names a format."""
    try:
        split_suffix(path)
    except ValueError:
        return False
    return True


def split_suffix(path: str) -> tuple[str, str | None]:
    """Format and compression that a suffix names, the latter None if it names none.

    Raises:
        ValueError: No known suffix; the message lists them.
    """
    name = (urlsplit(path).path if "://" in path else path).lower()
    endings = {"": None, **compression_suffixes}
    for format_name, row in formats.items():
        for suffix in row.suffixes:
            for ending, compression in endings.items():
                if name.endswith(suffix + ending):
                    return format_name, compression
        for suffix, compression in row.short_suffixes.items():
            if name.endswith(suffix):
                return format_name, compression
    # Only the last part of the path: what comes before it may hold secrets.
    raise ValueError(
        f"cannot tell the format of {name.rpartition('/')[2]!r}: expected a name that ends with "
        f"{known_suffixes()}; or name the format"
    )


def compression_named(path: str) -> str | None:
    """The compression that the end of a path names, whatever stands before it; None if it names none."""
    name = path.lower()
    endings = [compression_suffixes, *(row.short_suffixes for row in formats.values())]
    return next((of[end] for of in endings for end in of if name.endswith(end)), None)


def may_be_empty(name: str, path: str) -> bool:
    """Whether a shard of no bytes is a whole one: of lines without any kind of mark, and not compressed.

    Args:
        name: Its format.
        path: Its path, without query and fragment.
    """
    return formats[name].may_be_empty and compression_named(path) is None


def known_suffixes() -> str:
    """The endings that name a format, for messages."""
    streams, planned = (
        [
            suffix
            for row in formats.values()
            if row.selects == is_planned
            for suffix in (*row.suffixes, *row.short_suffixes)
        ]
        for is_planned in (False, True)
    )
    return (
        f"one of {', '.join(streams)}, alone or with {', '.join(compression_suffixes)} after it, or one of "
        f"{', '.join(planned)}"
    )


def check_format(name: str) -> None:
    """Refuse what is no name of a format whose shards tell by themselves what they hold.

    Raises:
        ValueError: Not a name in ``formats``, or of one that takes an index.
    """
    known, indexed = (
        [repr(each) for each, row in formats.items() if row.by_index == by_index]
        for by_index in (False, True)
    )
    if name not in [*formats]:  # whatever it is, a list too
        raise ValueError(
            f"format must be one of {', '.join(known)}, or, for a folder with its index.json, "
            f"{' or '.join(indexed)}, not {name!r}"
        )
    if formats[name].by_index:
        raise ValueError(f"{name} is read by an index.json: give its folder to al.from_{name}")


def _row(name: str) -> Format:
    if name not in formats:
        check_format(name)
    return formats[name]


def open_decoder(
    name: str,
    *,
    start_sample: int = 0,
    start_byte: int = 0,
    skip: int = 0,
    columns: bool = False,
    pass_over: PassOver | None = None,
    selection: Selection = EVERYTHING,
    schema: Any = None,
    unpacked: Unpacked | None = None,
    compression: str | None = None,
    delimiter: str | None = None,
) -> Decoder:
    """A decoder for one shard, from its start or from a position in its middle.

    From the start, the first bytes tell whether the shard is compressed, whatever its name says:
    servers unpack or pack on the way. Only uncompressed shards have positions with a byte, so with
    ``start_byte`` nothing is sniffed.

    Args:
        name: A name in ``formats``.
        start_sample: Samples of the shard that were had already. Without ``start_byte`` they are
            decoded again and dropped.
        start_byte: Offset in the shard of the first byte that will be fed, as the position says.
        skip: Samples from there on that are decoded and dropped.
        columns: Give columns, where the format has a way to make them of samples that are alike.
        pass_over: Called for samples that do not decode, where the format can go on behind them, which keep
            their indices; None to raise.
        selection: Which columns are wanted, where the format has some.
        schema: What an index says that the shards hold, where the format is read by one.
        unpacked: What an index says that this shard becomes, where it is compressed as a whole.
        compression: By the shard's name, see ``compression_named``; it matters where the shard has no bytes.
        delimiter: What separates the fields of CSV; None for what is usual.

    Returns:
        A decoder whose trails count from the start of the shard.

    Raises:
        ValueError: An unknown format, one that is read by a plan, or a negative number.
    """
    row = _row(name)
    if min(start_sample, start_byte, skip) < 0:
        raise ValueError(
            f"start_sample={start_sample}, start_byte={start_byte}, skip={skip} must be 0 or more"
        )
    decoder = row.columns if columns and row.columns is not None else row.decoder
    if decoder is None:
        raise ValueError(f"{name!r} is not read from front to back: open_plan gives its decoder")
    if pass_over is not None and row.passes_over:
        decoder = partial(decoder, pass_over=pass_over)
    if row.by_index:
        decoder = partial(decoder, schema=schema)
    if row.delimits:
        decoder = partial(decoder, delimiter=delimiter)
    if row.unpacks:
        decoder = partial(decoder, unpacked=unpacked)
    if row.selects:
        return decoder(start_sample=start_sample + skip, selection=selection)
    if start_byte:
        opened = decoder(start_sample=start_sample, start_byte=start_byte)
        return SkippingDecoder(opened, skip, start_sample) if skip else opened
    sniffing = SniffingDecoder(decoder, named=compression)
    return SkippingDecoder(sniffing, start_sample + skip) if start_sample + skip else sniffing


def open_plan(
    name: str,
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection = EVERYTHING,
    footers: Footers | None = None,
    schema: Any = None,
    unpacked: Unpacked | None = None,
) -> Planning | None:
    """The plan of what to read of one shard; None if it is to be read from front to back.

    Args:
        name: A name in ``formats``.
        start_sample: Samples of the shard that were had already, counted as it holds them, whatever a filter
            keeps.
        stop_sample: Index behind the last one that is wanted; what is read may go beyond it. None for all.
        selection: Which columns and rows are wanted.
        footers: Keeps what the plan has read, for those who read the shard again.
        schema: What an index says that the shards hold, where the format is read by one.
        unpacked: What an index says that this shard becomes, where it is compressed as a whole.

    Raises:
        ValueError: An unknown format.
    """
    row = _row(name)
    plan = row.plan
    if plan is None:
        return None
    if row.by_index:
        plan = partial(plan, schema=schema)
    if row.unpacks:
        plan = partial(plan, unpacked=unpacked)
    return plan(start_sample=start_sample, stop_sample=stop_sample, selection=selection, footers=footers)


def columns_of_all(columns: Iterable[str] | None, names: Iterable[str]) -> Selection:
    """The selection that reads these columns and no others, where all of the shards can do so.

    Args:
        columns: Names of fields; None for all.
        names: The formats of the shards.

    Returns:
        ``EVERYTHING`` where nothing is chosen, and where a shard is read from front to back: of its samples
        fields are then picked when they are there.

    Raises:
        TypeError, ValueError: See ``make_selection``.
    """
    if columns is None or not all(formats[name].selects for name in {*names}):
        return EVERYTHING
    return make_selection(columns, None)


def check_delimited(delimiter: str | None, names: Iterable[str]) -> None:
    """Refuse a delimiter that cannot be one, or of shards without any.

    Args:
        delimiter: What is to separate the fields of CSV; None for what is usual.
        names: The formats of the shards.

    Raises:
        TypeError, ValueError: See ``check_delimiter``; or one of the formats has none.
    """
    if delimiter is None:
        return
    check_delimiter(delimiter)
    if others := [name for name in dict.fromkeys(names) if not formats[name].delimits]:
        delimited = " and ".join(name for name, row in formats.items() if row.delimits)
        raise ValueError(
            f"delimiter is what separates the fields of {delimited}, but there are shards of "
            f"{' and '.join(others)}; if they are CSV, pass format='csv'"
        )


def check_selection(selection: Selection, names: Iterable[str]) -> None:
    """Refuse to choose among columns where there are none, or to read without pyarrow what needs it.

    Args:
        selection: What is wanted.
        names: The formats of the shards.

    Raises:
        ValueError: One of them has no columns, or no filters.
        ImportError: One of them is read with pyarrow, and that is not installed.
    """
    found = dict.fromkeys(names)
    for option, asked, can in (
        ("columns", selection.columns, [name for name, row in formats.items() if row.selects]),
        ("filters", selection.filters, [name for name, row in formats.items() if row.by_arrow]),
    ):
        if asked is not None and (others := [name for name in found if name not in can]):
            raise ValueError(
                f"{option} chooses from the columns of {', '.join(can)}, but there are shards of "
                f"{' and '.join(others)}; use .select_columns(...) and .filter(...) for their samples"
            )
    if any(formats[name].by_arrow for name in found):
        check_pyarrow()
