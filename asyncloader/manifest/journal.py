"""What a run that makes a manifest has found, kept beside it, so that a killed run goes on where it was.

It is a line for each shard from the moment on that it is known. A line is used again only for the shard that
it is of: a file must not have been written to since.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from threading import Lock
from typing import Any

from ..errors import FormatError
from ..stores.urls import local_path, scheme_of
from .entries import Expected, entry_of, parse_entry

__all__ = ["Journal", "modified_ns_of"]


class Journal:
    """What was found of shards, a line each, beside the manifest; used with ``with``.

    Args:
        manifest: Path of the manifest.
    """

    def __init__(self, manifest: str) -> None:
        folder, name = os.path.split(local_path(manifest))
        self.path = os.path.join(folder, f".{name}.partial")
        self._lock = Lock()
        self._known: dict[str, tuple[Expected, int | None]] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                with suppress(ValueError, FormatError):  # a killed run may have left a part of its last line
                    entry = json.loads(line)
                    if line.endswith(b"\n") and isinstance(entry, dict):
                        name, expected = parse_entry("", entry)
                        self._known[name] = expected, entry.get("modified_ns")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, name: str, url: str) -> Expected | None:
        """What a run before has found of a shard; None if nothing, or if the file was written to since."""
        found, modified_ns = self._known.get(name, (None, None))
        return found if modified_ns == modified_ns_of(url) else None

    def add(self, name: str, url: str, found: Expected, modified_ns: int | None) -> None:
        """Keep what was found of a shard, which was last written to at ``modified_ns``.

        Where no file can be written nothing is kept: it is the manifest that the user has to hear of.
        """
        line = json.dumps({**entry_of(name, found), "modified_ns": modified_ns}) + "\n"
        with self._lock, suppress(OSError):
            if self._file is None:
                # Appended to: of two runs at once each keeps what it has found.
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed on leaving
                if self._file.tell():
                    self._file.write(b"\n")  # behind a line that was cut
            self._file.write(line.encode())

    def remove(self) -> None:
        """All of it is in the manifest."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def modified_ns_of(url: str) -> int | None:
    """When a file was last written to; None for what is not here."""
    if not scheme_of(url).is_local:
        return None
    try:
        return os.stat(local_path(url)).st_mtime_ns
    except OSError:
        return None
