"""What a run that makes a manifest has found, kept beside it, so that a killed run goes on where it was.

It is a line for each shard from the moment on that it is known. A line is used again only for the version
that it is of, as the shard's store names it; of a store that names none, for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from ..errors import FormatError
from ..stores.urls import local_path
from .entries import Expected, entry_of, parse_entry

__all__ = ["Journal"]


class Journal:
    """What was found of shards, a line each, beside the manifest; used with ``with``.

    Args:
        manifest: Path of the manifest.
    """

    def __init__(self, manifest: str) -> None:
        folder, name = os.path.split(local_path(manifest))
        self.path = os.path.join(folder, f".{name}.partial")
        self._lock = Lock()
        self._known: dict[str, tuple[Expected, str | None]] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                with suppress(ValueError, FormatError):  # a killed run may have left a part of its last line
                    entry = json.loads(line)
                    if line.endswith(b"\n") and isinstance(entry, dict):
                        name, expected = parse_entry("", entry)
                        self._known[name] = expected, entry.get("etag")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, name: str, version: Callable[[], tuple[int | None, str | None]]) -> Expected | None:
        """What a run before has found of a shard; None if nothing, or if that may be of another version.

        Args:
            name: In the manifest.
            version: Asks what the shard is now, as ``Survey.version``; called if something was found.
        """
        found, etag = self._known.get(name, (None, None))
        if found is None or etag is None:
            return None
        return found if version() == (found.size_bytes, etag) else None

    def add(self, name: str, found: Expected, etag: str | None) -> None:
        """Keep what was found of a shard, in the version that its store calls ``etag``.

        Where no file can be written nothing is kept: it is the manifest that the user has to hear of.
        """
        line = json.dumps({**entry_of(name, found), "etag": etag}) + "\n"
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
