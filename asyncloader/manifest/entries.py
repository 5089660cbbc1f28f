"""The manifest as a file: bytes in, checked entries out, and back. Pure.

Nothing in a manifest is opened or followed: its names are only compared with those of shards that the
user has named. Every value is held against its range all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ..errors import FormatError
from ..types import Unpacked
from .offsets import MOST_OFFSETS, Offsets, thin

__all__ = [
    "FIRST_LINE",
    "LAST_LINE",
    "MAX_MANIFEST_BYTES",
    "MOST_LOOKED_AT_BYTES",
    "Expected",
    "Manifest",
    "entry_of",
    "format_manifest",
    "is_broken",
    "is_manifest",
    "load_json",
    "parse_entry",
    "parse_manifest",
]

# The key of the version says whose file this is too: many programs have a manifest.json.
_VERSION_KEY = "asyncloader_manifest"
_VERSION = 1

#: What stands before the entries as they are written, and behind them.
FIRST_LINE = f'{{"{_VERSION_KEY}": {_VERSION}, "shards": [\n'.encode()
LAST_LINE = b"\n]}\n"

# An entry takes some 190 bytes, so that this is a million shards and all the offsets that there may be.
MAX_MANIFEST_BYTES = 256 << 20
_MAX_FOREIGN_BYTES = 1 << 20  # of a file of somebody else's, parsed to see whether it is anything at all
#: The beginning by which it is told whose a file is.
MOST_LOOKED_AT_BYTES = _MAX_FOREIGN_BYTES + 1
_MAX_NAME_CHARACTERS = 4096  # keys of object stores have at most 1024 bytes, paths 4096
_MAX_NUMBER = (1 << 63) - 1
_DIGEST_BYTES = {"sha256": 32, "crc32c": 4}


@dataclass(frozen=True, slots=True)
class Expected:
    """What one shard should be.

    Attributes:
        size_bytes: Length as stored, compressed if it is; None if not known, which it is by every manifest.
        samples: How many samples it holds; None if that is not known.
        sha256: Of the stored bytes; None if not known.
        crc32c: Of the stored bytes, big-endian; None if not known.
        offsets: Where a decoder may begin inside of it, none where its format cannot; None if nobody has
            looked. See ``offsets``.
        hashed: Another digest of the stored bytes: its algorithm, of those in ``digest``, and itself.
            Manifests have none; indexes of other libraries may.
        unpacked: What it becomes when it is decompressed; None if nobody says, as in manifests.
    """

    size_bytes: int | None
    samples: int | None = None
    sha256: bytes | None = None
    crc32c: bytes | None = None
    offsets: Offsets | None = None
    hashed: tuple[str, bytes] | None = None
    unpacked: Unpacked | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether it tells what it takes to cut lanes inside of the shard."""
        return self.samples is not None and self.offsets is not None

    @property
    def digests(self) -> dict[str, bytes]:
        """The digests that are known, by algorithm."""
        known = {name: value for name in _DIGEST_BYTES if (value := getattr(self, name)) is not None}
        return known if self.hashed is None else {self.hashed[0]: self.hashed[1], **known}


@dataclass(frozen=True)
class Manifest:
    """The entries of a manifest, by name.

    Attributes:
        shards: What is expected of each; the names are relative to the manifest, or URLs.
    """

    shards: Mapping[str, Expected] = field(default_factory=dict)


def is_manifest(content: bytes) -> bool:
    """Whether a file looks by its beginning like a manifest of ours; others have files of that name too."""
    return f'"{_VERSION_KEY}"'.encode() in content[:4096]


def is_broken(content: bytes) -> bool:
    """Whether a file that is no manifest of ours is nobody else's either: it is empty, or no JSON.

    Args:
        content: The file, or the first ``MOST_LOOKED_AT_BYTES`` of it.
    """
    if not content[:4096].strip(b"\0 \t\r\n"):  # zeros are what a power cut may leave
        return True
    if len(content) > _MAX_FOREIGN_BYTES:
        return False
    try:
        json.loads(content)
    except ValueError:
        return True
    except RecursionError:
        return False
    return False


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest.

    Args:
        content: The whole file.

    Raises:
        FormatError: It is not a manifest, or of another version, or anything in it is odd; the message
            says where. Fields that are not known are ignored.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest: longer than {MAX_MANIFEST_BYTES} bytes")
    try:
        document = load_json(content)
    except json.JSONDecodeError as error:
        raise FormatError(f"manifest: no JSON: {error}") from error
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest: no JSON: {error}") from error
    if not isinstance(document, dict) or _VERSION_KEY not in document:
        raise FormatError(f"manifest: expected an object with {_VERSION_KEY!r}, which this file lacks")
    version = document[_VERSION_KEY]
    if type(version) is not int or version != _VERSION:
        raise FormatError(
            f"manifest: expected version {_VERSION}, found {version!r}; update asyncloader, or make it anew"
        )
    shards = document.get("shards")
    if not isinstance(shards, list):
        raise FormatError(f"manifest: shards should be a list, found {_shown(shards)}")
    entries: dict[str, Expected] = {}
    for number, entry in enumerate(shards):
        place = f"shards[{number}]"
        if not isinstance(entry, dict):
            _fail(place, "an object", entry)
        name, expected = parse_entry(f"{place}.", entry)
        if name in entries:
            raise FormatError(f"manifest: {place}.name: {name!r} is there twice")
        entries[name] = expected
    if (count := sum(len(entry.offsets or ()) for entry in entries.values())) > MOST_OFFSETS:
        raise FormatError(f"manifest: expected at most {MOST_OFFSETS} offsets, found {count}")
    return Manifest(entries)


def load_json(content: bytes) -> Any:
    """The value that ``content`` is, of which no two programs differ.

    Raises:
        ValueError: No JSON.
        RecursionError: Too deep.
        FormatError: A name twice in one object, or a number that JSON does not have.
    """
    return json.loads(str(content, "utf-8"), object_pairs_hook=_object, parse_constant=_refuse)


def format_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: a line for each shard, sorted by name, so that two can be compared.

    Where all together have too many offsets, the rate of all is lowered.
    """
    lines = []
    offsets = thin({name: expected.offsets or () for name, expected in manifest.shards.items()})
    for name, expected in sorted(manifest.shards.items()):
        if expected.offsets is not None:
            expected = replace(expected, offsets=offsets[name])
        lines.append(json.dumps(entry_of(name, expected)))
    return FIRST_LINE + b"  " + ",\n  ".join(lines).encode() + LAST_LINE


def entry_of(name: str, expected: Expected) -> dict[str, Any]:
    """An entry as a manifest has it."""
    entry: dict[str, Any] = {"name": name, "size_bytes": expected.size_bytes}
    if expected.samples is not None:
        entry["samples"] = expected.samples
    digests = expected.digests
    entry |= {algorithm: digests[algorithm].hex() for algorithm in _DIGEST_BYTES if algorithm in digests}
    if expected.offsets is not None:
        entry["offsets"] = expected.offsets
    return entry


def parse_entry(place: str, entry: Mapping[str, Any]) -> tuple[str, Expected]:
    """The name of an entry, and what it says; ``place`` stands before what is odd in errors.

    Raises:
        FormatError: Something is odd.
    """
    name = _name(f"{place}name", entry.get("name"))
    digests = {
        algorithm: _hex(f"{place}{algorithm}", entry[algorithm], length)
        for algorithm, length in _DIGEST_BYTES.items()
        if algorithm in entry
    }
    samples = _number(f"{place}samples", entry["samples"]) if "samples" in entry else None
    size_bytes = _number(f"{place}size_bytes", entry.get("size_bytes"))
    offsets = None
    if "offsets" in entry:
        offsets = _offsets(f"{place}offsets", entry["offsets"], samples or 0, size_bytes)
    return name, Expected(size_bytes, samples, digests.get("sha256"), digests.get("crc32c"), offsets)


def _offsets(place: str, found: object, samples: int, size_bytes: int) -> Offsets:
    if not isinstance(found, list):
        _fail(place, "a list of pairs of a sample and a byte", found)
    before = (0, 0)
    offsets = []
    for number, pair in enumerate(found):
        if not isinstance(pair, list) or len(pair) != 2 or {type(pair[0]), type(pair[1])} != {int}:
            _fail(f"{place}[{number}]", "a pair of a sample and a byte", pair)
        if not (before[0] < pair[0] < samples and before[1] < pair[1] < size_bytes):
            _fail(
                f"{place}[{number}]",
                f"a pair above {list(before)} and below [{samples}, {size_bytes}], the end of the shard",
                pair,
            )
        before = (pair[0], pair[1])
        offsets.append(before)
    return tuple(offsets)


def _name(place: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARACTERS:
        _fail(place, f"a name of 1 to {_MAX_NAME_CHARACTERS} characters", name)
    path = name.partition("://")[2] or name
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        _fail(place, "a path below the manifest's folder, or a URL", name)
    return name


def _number(place: str, number: object) -> int:
    if type(number) is not int or not 0 <= number <= _MAX_NUMBER:
        _fail(place, "a whole number of 0 or more", number)
    return number


def _hex(place: str, text: object, length: int) -> bytes:
    try:
        if isinstance(text, str) and len(text) == 2 * length and len(digest := bytes.fromhex(text)) == length:
            return digest
    except ValueError:
        pass
    _fail(place, f"{2 * length} hexadecimal digits", text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):  # programs differ on which one counts
        raise FormatError(f"manifest: a name twice in one object, among {', '.join(members)[:200]}")
    return members


def _refuse(constant: str) -> NoReturn:
    raise FormatError(f"manifest: {constant} is no JSON")


def _fail(place: str, wanted: str, found: object) -> NoReturn:
    raise FormatError(f"manifest: {place}: expected {wanted}, found {_shown(found)}")


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
