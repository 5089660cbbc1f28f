"""The index as a file: what each shard should be, read from bytes and written to them. Pure.

A name in an index is only compared with the shards that the user has named: no file is opened because of it.
Every value is checked against its range all the same.

The file is JSON, with a line for each shard. So a million entries are read in less than a second: some lines
at a time, into columns. A file that is written in another way, or that is not sound, is parsed as a whole,
which also finds the error to report.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter, lt
from typing import Annotated, Any, BinaryIO, NoReturn, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType

from ..blocks import offsets_of
from ..errors import FormatError
from .expectations import Expectations, Expected, Known, Offsets, Rows

# The key of the version also identifies the file.
_VERSION_KEY = "asyncloader_index"
_VERSION = 1

#: What is written before the entries, and behind them.
FIRST_LINE = f'{{"{_VERSION_KEY}": {_VERSION}, "shards": [\n'.encode()
LAST_LINE = b"\n]}\n"

# An entry takes some 190 bytes: enough for a million shards and the most offsets.
MAX_INDEX_BYTES = 256 << 20
#: How much of a file is read to see whether it is one.
MOST_LOOKED_AT_BYTES = 4 << 10

# Parsed at once: a thousand lines, so few that their objects do not start a full garbage collection.
_READ_BYTES = 1 << 18

# A lane that begins inside of a shard drops half of it on average: a tenth of a second at 20 MB/s.
OFFSET_BYTES = 4 << 20

# Of a whole index: 20 bytes each are 20 MB. Four thousand shards of 1 GiB keep one every 4 MiB, a million of
# them one a shard.
MOST_OFFSETS = 1 << 20

_DIGITS = {*"0123456789abcdefABCDEF"}

# What precedes the path in a name that is a URL.
_SCHEME = re.compile(r"(?m)^.*?://(?=.)")

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _IndexEntry(msgspec.Struct, gc=False):
    """An entry as it is written. Defaults mark fields that are left out: no file can contain them."""

    # Keys of object stores have at most 1024 bytes, paths 4096.
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    size_bytes: _Number
    samples: _Number = -1
    sha256: Annotated[str, Meta(min_length=64, max_length=64)] = ""
    crc32c: Annotated[str, Meta(min_length=8, max_length=8)] = ""
    offsets: tuple[tuple[_Number, _Number], ...] | UnsetType = UNSET


_entries = msgspec.json.Decoder(list[_IndexEntry])

_T = TypeVar("_T")


def is_index(content: bytes) -> bool:
    """Whether the beginning of a file is that of an index of ours."""
    return f'"{_VERSION_KEY}"'.encode() in content[:MOST_LOOKED_AT_BYTES]


def read_index(file: BinaryIO) -> tuple[list[str], Expectations]:
    """The names in an index, and what it expects of each; a name may be there twice.

    Args:
        file: At its beginning; seekable.

    Raises:
        FormatError: It is not an index, or has another version or an invalid value; the message says where.
    """
    names: list[str] = []

    def parts() -> Iterator[Expectations]:
        count = 0
        for lines in _lists_of(file):
            part_names, part = _read_list(lines)
            names.extend(part_names)
            count += len(part.offsets)
            _check_count(count)
            yield part

    try:
        return names, Expectations.join(parts())
    except (FormatError, ValueError, RecursionError):
        file.seek(0)
        return _columns(_parse_whole(file.read(MAX_INDEX_BYTES + 1)))


def parse_index(content: bytes) -> dict[str, Expected]:
    """What an index expects of each shard; see ``read_index``.

    Raises:
        FormatError: It is not sound, or a name occurs twice.
    """
    names, expected = read_index(io.BytesIO(content))
    check_unique(names)
    return {name: one for name, one in zip(names, expected, strict=True) if one is not None}


def parse_own(content: bytes, where: str) -> dict[str, Expected]:
    """``parse_index`` for an index to which entries are added.

    Raises:
        FormatError: It is not sound, or is another program's file, which must not be replaced.
    """
    if not is_index(content):
        raise FormatError("there is a file of this name that is not an index of shards", shard=where)
    try:
        return parse_index(content)
    except FormatError as error:
        error.shard = where
        raise


def check_unique(names: Sequence[str]) -> None:
    """Check that names are unique.

    Raises:
        FormatError: One occurs twice.
    """
    if all(map(lt, names, islice(names, 1, None))) or len({*names}) == len(names):
        return
    first = {name: number for number, name in reversed([*enumerate(names)])}
    number = next(number for number, name in enumerate(names) if first[name] < number)
    _refuse(f"shards[{number}].name: {names[number]!r} occurs twice")


def format_index(shards: Mapping[str, Expected]) -> bytes:
    """The file of an index: a line for each shard, sorted by name, so that two can be compared.

    If there are too many offsets in all, every shard keeps fewer of them.
    """
    offsets = thin({name: expected.offsets or () for name, expected in shards.items()})
    lines = []
    for name, expected in sorted(shards.items()):
        if expected.offsets is not None:
            expected = replace(expected, offsets=offsets[name])
        lines.append(json.dumps(entry_of(name, expected)))
    return FIRST_LINE + b"  " + ",\n  ".join(lines).encode() + LAST_LINE


def entry_of(name: str, expected: Expected) -> dict[str, Any]:
    """An entry, as JSON values."""
    digests = {"sha256": expected.sha256, "crc32c": expected.crc32c}
    fields = {
        "name": name,
        "size_bytes": expected.size_bytes,
        "samples": expected.samples,
        **{algorithm: digest and digest.hex() for algorithm, digest in digests.items()},
        "offsets": expected.offsets,
    }
    return {key: value for key, value in fields.items() if value is not None}


def encode_note(note: Any) -> bytes:
    """A dataclass as JSON on one line. Names of files may hold what is no UTF-8, so it is all ASCII."""
    return json.dumps(msgspec.to_builtins(note)).encode()


def decode_note(content: bytes, type: type[_T]) -> _T:
    """The dataclass that ``encode_note`` has written.

    Raises:
        ValueError: It is cut, or of another type.
    """
    return msgspec.convert(json.loads(content), type, str_keys=True)


def _lists_of(file: BinaryIO) -> Iterator[memoryview]:
    """The lines of all entries as JSON lists of many lines each; a list is valid until the next one is taken.

    Raises:
        ValueError: The file has another layout.
    """
    if file.readline(len(FIRST_LINE)) != FIRST_LINE:
        raise ValueError
    # One buffer for all: fresh memory for each list costs as much as half of the parsing.
    buffer = bytearray(_READ_BYTES)
    at, is_last = len(FIRST_LINE) - 1, False
    while not is_last:
        file.seek(at)  # at the end of a line, in whose place the list begins
        filled = file.readinto(buffer)  # type: ignore[attr-defined]  # which all open files have
        is_last = filled < len(buffer)
        end = filled - len(LAST_LINE) if is_last else buffer.rfind(b",\n", 0, filled)
        if at + filled > MAX_INDEX_BYTES or (is_last and not buffer.endswith(LAST_LINE, 0, filled)):
            raise ValueError
        if end < 0:  # a line that is longer than the buffer
            buffer += bytes(len(buffer))
            continue
        buffer[0], buffer[end] = b"[]"
        with memoryview(buffer)[: end + 1] as lines:
            yield lines
        at += end + 1


def _read_list(lines: memoryview) -> tuple[list[str], Expectations]:
    """The names and expectations of some lines, which are a JSON list.

    Raises:
        ValueError, RecursionError, FormatError: They are not sound.
    """
    text = str(lines, "utf-8")  # msgspec does not look at all of the fields that it ignores
    # Names of files that are no UTF-8 have escapes that it refuses.
    found = _convert(_load(text), list[_IndexEntry]) if "\\" in text else _entries.decode(text)
    names, expected = _columns(found)
    # Two names in one entry are for the slower parser to refuse: msgspec takes the last. Most lists have no
    # quotation marks but those of the fields that were found, which are counted in a fifth of the time.
    quotes = np.count_nonzero(np.frombuffer(lines, np.uint8) == ord('"'))
    if not found or (quotes != _quotes_of(expected.known) and text.count('"name"') != len(found)):
        raise ValueError
    return names, expected


def _quotes_of(known: npt.NDArray[np.uint8]) -> int:
    """How many quotation marks entries are written with; the digests are strings."""
    fields = {Known.SAMPLES: 2, Known.SHA256: 4, Known.CRC32C: 4, Known.OFFSETS: 2}
    return 6 * len(known) + sum(each * int(np.count_nonzero(known & bit)) for bit, each in fields.items())


def _parse_whole(content: bytes) -> list[_IndexEntry]:
    if len(content) > MAX_INDEX_BYTES:
        _refuse(f"longer than {MAX_INDEX_BYTES} bytes")
    try:
        document = _load(str(content, "utf-8"))
    except (ValueError, RecursionError) as error:
        _refuse(f"not JSON: {error}", error)
    if not isinstance(document, dict) or _VERSION_KEY not in document:
        _refuse(f"expected an object with {_VERSION_KEY!r}, which this file lacks")
    version = document[_VERSION_KEY]
    if type(version) is not int or version != _VERSION:
        _refuse(f"expected version {_VERSION}, found {version!r}; update asyncloader, or make it anew")
    found = _convert(document.get("shards"), list[_IndexEntry])
    _check_count(sum(len(entry.offsets or ()) for entry in found))
    return found


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if sum(key == "name" for key, _ in pairs) > 1:
        raise ValueError("two names in one entry, as two lines have that were merged")
    return dict(pairs)


def _convert(value: object, type: type[_T]) -> _T:
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        place = path.strip("`").replace("$", "shards", 1) or "shards"
        _refuse(f"{place}: {what[:1].lower()}{what[1:].replace('`', '')}", error)


def _check_count(offsets: int) -> None:
    if offsets > MOST_OFFSETS:
        _refuse(f"expected at most {MOST_OFFSETS} offsets, found {offsets}")


def _columns(found: Sequence[_IndexEntry]) -> tuple[list[str], Expectations]:
    """The names of entries, and their values as columns.

    Raises:
        FormatError: A name, a digest or an offset is not sound.
    """
    names = [entry.name for entry in found]
    _check_names(names)
    sizes = np.array([entry.size_bytes for entry in found], np.int64)
    samples = np.array([entry.samples for entry in found], np.int64)
    known = np.full(len(found), Known.ENTRY, np.uint8)
    known[samples >= 0] |= Known.SAMPLES
    np.maximum(samples, 0, out=samples)
    listed: list[Any] = [entry.offsets for entry in found]
    if UnsetType in {*map(type, listed)}:
        known[[offsets is not UNSET for offsets in listed]] |= Known.OFFSETS
        listed = [offsets or () for offsets in listed]
    else:
        known |= Known.OFFSETS
    begins = offsets_of([*map(len, listed)])
    pairs = chain.from_iterable(chain.from_iterable(listed))
    offsets = np.fromiter(pairs, np.int64, 2 * int(begins[-1])).reshape(-1, 2)
    if len(offsets):
        _check_offsets(offsets, begins, np.column_stack([samples, sizes]))
    nothing = np.zeros((len(found), 0), np.uint8)
    return names, Expectations(
        size_bytes=sizes,
        samples=samples,
        sha256=_digests("sha256", found, known),
        crc32c=_digests("crc32c", found, known),
        hashed=nothing,
        unpacked=nothing,
        known=known,
        offsets=offsets,
        begins=begins,
    )


def _check_names(names: Sequence[str]) -> None:
    # All are searched at once; each is checked alone only if one may be invalid.
    lines = "\n".join(["", *names, ""])
    segments = (_SCHEME.sub("", lines) if "://" in lines else lines).replace("/", "\n")
    if lines.count("\n") == len(names) + 1 and "\n\n" not in segments and "\n." not in segments:
        return
    for number, name in enumerate(names):
        path = name.partition("://")[2] or name
        if not {"", ".", ".."}.isdisjoint(path.split("/")):
            _refuse(
                f"shards[{number}].name: expected a path below the index's folder, or a URL, "
                f"found {name[:80]!r}"
            )


def _digests(name: str, found: Sequence[_IndexEntry], known: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The digests of one kind as bytes; sets the bit of ``known`` for entries that have one."""
    bit, digits = {"sha256": (Known.SHA256, 64), "crc32c": (Known.CRC32C, 8)}[name]
    texts = [*map(attrgetter(name), found)]
    text = "".join(texts)
    if len(text) < len(texts) * digits:
        known[[*map(bool, texts)]] |= bit
        text = "".join([text or "0" * digits for text in texts])
    else:
        known |= bit
    try:
        digests = bytes.fromhex(text)
    except ValueError:
        digests = b""
    if len(digests) != len(texts) * digits // 2:  # spaces may stand between digits
        number = next(number for number, text in enumerate(texts) if not {*text} <= _DIGITS)
        _refuse(f"shards[{number}].{name}: expected {digits} hexadecimal digits, found {texts[number]!r}")
    return np.frombuffer(digests, np.uint8).reshape(-1, digits // 2)


def _check_offsets(offsets: Rows, begins: Rows, ends: Rows) -> None:
    """Check that each is above the one before it, and inside of its shard."""
    before = np.concatenate([np.zeros((1, 2), np.int64), offsets[:-1]])[: len(offsets)]
    counts = np.diff(begins)
    before[begins[:-1][counts > 0]] = 0
    odd = np.flatnonzero(~((before < offsets) & (offsets < np.repeat(ends, counts, axis=0))).all(axis=1))
    if len(odd):
        at = int(odd[0])
        shard = int(np.searchsorted(begins, at, "right")) - 1
        place = f"shards[{shard}].offsets[{at - int(begins[shard])}]"
        _refuse(
            f"{place}: expected a pair above {before[at].tolist()} and below {ends[shard].tolist()}, "
            f"the end of the shard, found {offsets[at].tolist()}"
        )


def _refuse(what: str, cause: BaseException | None = None) -> NoReturn:
    raise FormatError(f"index: {what}") from cause


class OffsetPicker:
    """Picks the offsets of a shard while it is written or read.

    It keeps the first offset at or behind each multiple of ``rate_bytes``, but never the shard's beginning or
    end. So the offsets for a coarser rate are a subset of those for a finer one, and a writer keeps the same
    ones as a later reader.

    Args:
        rate_bytes: Their distance.
    """

    def __init__(self, rate_bytes: int = OFFSET_BYTES) -> None:
        self._rate_bytes = rate_bytes
        self._next_byte = rate_bytes
        self._picked: list[tuple[int, int]] = []

    def add(self, sample: int, byte: int) -> None:
        """A decoder may begin at ``byte``, which follows ``sample`` samples."""
        if byte >= self._next_byte:
            self._picked.append((sample, byte))
            self._next_byte = (byte // self._rate_bytes + 1) * self._rate_bytes

    def add_run(self, first: int, ends: Sequence[int]) -> None:
        """A decoder may begin at each of ``ends``, which follow sample ``first`` and those after it."""
        at = bisect_left(ends, self._next_byte)
        while at < len(ends):
            self.add(first + at + 1, ends[at])
            at = bisect_left(ends, self._next_byte, at + 1)

    def picked(self, samples: int) -> Offsets:
        """The offsets of a shard with so many samples."""
        return tuple(offset for offset in self._picked if offset[0] < samples)


def thin(shards: Mapping[str, Offsets], most: int = MOST_OFFSETS) -> dict[str, Offsets]:
    """The offsets of shards, at a coarser rate if there are more than ``most`` in all."""
    rate_bytes = OFFSET_BYTES
    kept = dict(shards)
    while sum(map(len, kept.values())) > most:
        rate_bytes *= 2
        kept = {name: _at_rate(offsets, rate_bytes) for name, offsets in kept.items()}
    return kept


def _at_rate(offsets: Iterable[tuple[int, int]], rate_bytes: int) -> Offsets:
    picker = OffsetPicker(rate_bytes)
    for sample, byte in offsets:
        picker.add(sample, byte)
    return picker.picked(1 << 63)
