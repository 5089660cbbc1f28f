"""Write the manifest of a folder that several processes may write shards into."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ..descriptors import occupy_standard_descriptors
from ..draft import write_whole
from ..errors import FormatError
from .entries import (
    MAX_MANIFEST_BYTES,
    Expected,
    Manifest,
    format_manifest,
    is_manifest,
    parse_manifest,
)
from .lookup import open_local_manifest

__all__ = ["check_manifest", "update_manifest"]


def check_manifest(path: str) -> None:
    """Refuse what ``update_manifest`` could not add to.

    Raises:
        FormatError: There is a file of this name that is no manifest, or none of this version.
    """
    _read(path)


def update_manifest(path: str, entries: Mapping[str, Expected]) -> None:
    """Add entries to a manifest, or make it.

    Entries of the same names are replaced, and those dropped whose files have gone from the folder. A
    killed process leaves the old manifest or the new one, and at most one hidden ``.tmp`` file.

    Args:
        path: The manifest.
        entries: By name.

    Raises:
        FormatError: There is a file of this name that is no manifest, or none of this version; it stays.
        OSError: The file cannot be written.
    """
    folder = os.path.dirname(path) or "."
    occupy_standard_descriptors()
    with _locked(folder):
        present = set(os.listdir(folder))
        kept = {
            name: expected
            for name, expected in _read(path).shards.items()
            if "/" in name or name in present  # URLs and files of other folders are not looked for
        }
        write_whole(path, format_manifest(Manifest({**kept, **entries})))


def _read(path: str) -> Manifest:
    with open_local_manifest(path) as file:
        content = None if file is None else file.read(MAX_MANIFEST_BYTES + 1)
    if content is None and not os.path.lexists(path):
        return Manifest()
    if content is None or not is_manifest(content):
        raise FormatError("there is a file of this name that is no manifest of shards", shard=path)
    try:
        return parse_manifest(content)
    except FormatError as error:
        error.shard = path
        raise


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """One process at a time. The lock is the folder's own, so that no file is left and none can be stale.

    Some network file systems lock no folders, and Windows none at all. There two writers that close in the
    same moment may lose each other's entries; a shard without an entry is read unchecked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
