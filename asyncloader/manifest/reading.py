"""A manifest from a file into columns: by its lines as far as it is written so, else as any JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from ..errors import FormatError
from .entries import FIRST_LINE, LAST_LINE, MAX_MANIFEST_BYTES, load_json, parse_entry, parse_manifest
from .expectations import Expectations
from .lines import read_lines
from .offsets import MOST_OFFSETS
from .packed import PackedTexts

__all__ = ["read_manifest"]

# What is looked at at once: some thousands of lines, all of which stay in the processor's cache.
_READ_BYTES = 1 << 20


def read_manifest(file: BinaryIO) -> tuple[PackedTexts, Expectations]:
    """The names of a manifest and what it expects of each; a name may be there twice.

    Args:
        file: At its beginning; it can be wound back.

    Raises:
        FormatError: As ``parse_manifest`` does.
    """
    names: list[PackedTexts] = []

    def parts() -> Iterator[Expectations]:
        offsets = 0
        for lines in _lines_of(file):
            part_names, part = read_lines(lines) or _parse(lines)
            offsets += len(part.offsets)
            if offsets > MOST_OFFSETS:
                raise _Otherwise
            names.append(part_names)
            yield part

    try:
        entries = Expectations.join(parts())
        return PackedTexts.join(names), entries
    except _Otherwise:
        file.seek(0)
        shards = parse_manifest(file.read(MAX_MANIFEST_BYTES + 1)).shards
        return PackedTexts.of(shards), Expectations.of(shards.values())


class _Otherwise(Exception):
    """It is not written in lines, or not sound; whoever reads it as JSON will say."""


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of all entries, many at a time, each with its comma."""
    if file.readline(len(FIRST_LINE)) != FIRST_LINE:
        raise _Otherwise
    size_bytes, rest = len(FIRST_LINE), b""
    while chunk := file.read(_READ_BYTES):
        size_bytes += len(chunk)
        whole, comma, rest = (rest + chunk).rpartition(b",\n")
        if comma:
            yield whole + comma
    if size_bytes > MAX_MANIFEST_BYTES or not rest.endswith(b"}" + LAST_LINE):
        raise _Otherwise
    yield rest.removesuffix(LAST_LINE) + b",\n"


def _parse(lines: bytes) -> tuple[PackedTexts, Expectations]:
    """The names and entries of lines that are written in another way."""
    try:
        found = [parse_entry("", entry) for entry in load_json(b"[%s]" % lines.rstrip(b",\n"))]
    except (FormatError, ValueError, RecursionError, AttributeError):
        raise _Otherwise from None
    return PackedTexts.of(name for name, _ in found), Expectations.of(expected for _, expected in found)
