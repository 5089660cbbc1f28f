"""The manifest as a file: bytes in, checked entries out, and back. Pure.

Nothing in a manifest is opened or followed: its names are only compared with those of shards that the
user has named. Every value is held against its range all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import FormatError

__all__ = [
    "MAX_MANIFEST_BYTES",
    "Expected",
    "Manifest",
    "format_manifest",
    "is_broken",
    "is_manifest",
    "parse_manifest",
]

# The key of the version says whose file this is too: many programs have a manifest.json.
_VERSION_KEY = "asyncloader_manifest"
_VERSION = 1

# An entry takes some 170 bytes, so that this is a million shards.
MAX_MANIFEST_BYTES = 256 << 20
_MAX_FOREIGN_BYTES = 1 << 20  # of a file of somebody else's, parsed to see whether it is anything at all
_MAX_NAME_CHARACTERS = 4096  # keys of object stores have at most 1024 bytes, paths 4096
_MAX_NUMBER = (1 << 63) - 1
_DIGEST_BYTES = {"sha256": 32, "crc32c": 4}


@dataclass(frozen=True, slots=True)
class Expected:
    """What one shard should be.

    Attributes:
        size_bytes: Length as stored, compressed if it is.
        samples: How many samples it holds; None if that is not known.
        sha256: Of the stored bytes; None if not known.
        crc32c: Of the stored bytes, big-endian; None if not known.
    """

    size_bytes: int
    samples: int | None = None
    sha256: bytes | None = None
    crc32c: bytes | None = None

    @property
    def digests(self) -> dict[str, bytes]:
        """The digests that are known, by algorithm."""
        return {name: value for name in _DIGEST_BYTES if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Manifest:
    """The entries of a manifest, by name.

    Attributes:
        shards: What is expected of each; the names are relative to the manifest, or URLs.
    """

    shards: Mapping[str, Expected] = field(default_factory=dict)


def is_manifest(content: bytes) -> bool:
    """Whether a file looks like a manifest of ours, sound or not; others have files of that name too."""
    return f'"{_VERSION_KEY}"'.encode() in content[:4096]


def is_broken(content: bytes) -> bool:
    """Whether a file that is no manifest of ours is nobody else's either: it is empty, or no JSON."""
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
        document = json.loads(str(content, "utf-8"), object_pairs_hook=_object, parse_constant=_refuse)
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
        name = _name(f"{place}.name", entry.get("name"))
        if name in entries:
            raise FormatError(f"manifest: {place}.name: {name!r} is there twice")
        entries[name] = _expected(place, entry)
    return Manifest(entries)


def format_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: a line for each shard, sorted by name, so that two can be compared."""
    lines = []
    for name, expected in sorted(manifest.shards.items()):
        entry: dict[str, Any] = {"name": name, "size_bytes": expected.size_bytes}
        if expected.samples is not None:
            entry["samples"] = expected.samples
        entry |= {algorithm: digest.hex() for algorithm, digest in expected.digests.items()}
        lines.append(json.dumps(entry))
    body = ",\n  ".join(lines)
    return f'{{"{_VERSION_KEY}": {_VERSION}, "shards": [\n  {body}\n]}}\n'.encode()


def _expected(place: str, entry: Mapping[str, Any]) -> Expected:
    digests = {
        name: _hex(f"{place}.{name}", entry[name], length)
        for name, length in _DIGEST_BYTES.items()
        if name in entry
    }
    if not digests:
        raise FormatError(f"manifest: {place}: expected one of {', '.join(_DIGEST_BYTES)}, found none")
    samples = _number(f"{place}.samples", entry["samples"]) if "samples" in entry else None
    return Expected(_number(f"{place}.size_bytes", entry.get("size_bytes")), samples, **digests)


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
        if isinstance(text, str) and len(text) == 2 * length:
            return bytes.fromhex(text)
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
