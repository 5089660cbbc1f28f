"""A file that has its name only when it is whole."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import IO


class AtomicFile:
    """A new file under a hidden name, which gets its own when it is published.

    A process that is killed leaves the hidden file at most, which nobody reads and anybody may remove.

    Args:
        path: The name that it is to have; what has it until then stays whole.
        aside: The folder where it is hidden until then, of the same file system; None for that of its name.

    Raises:
        OSError: The folder is not there, or takes no file.
    """

    def __init__(self, path: str, aside: str | None = None) -> None:
        self._path = path
        folder, name = os.path.split(path)
        self._hidden = os.path.join(folder if aside is None else aside, f".{name}.{secrets.token_hex(8)}.tmp")
        #: To write to. Whoever does calls ``publish`` or ``discard`` in the end.
        self.file: IO[bytes] = open(self._hidden, "xb")  # noqa: SIM115 - publish or discard close it

    def publish(self) -> None:
        """Close the file and give it its name. Where that fails it is for ``discard``."""
        try:
            self.file.flush()
            # Else a power cut may leave the new name with an empty file.
            os.fsync(self.file.fileno())
        except OSError as error:
            raise named(error, self.file) from None
        self.file.close()
        os.replace(self._hidden, self._path)

    def discard(self) -> None:
        """Close and remove the file, if it has not got its name."""
        with suppress(Exception):  # what is left to flush fails on a full disk
            self.file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._hidden)


def named(error: OSError, file: IO[bytes]) -> OSError:
    """The error of writing to a file, which says which; the system's does not, as of a full disk."""
    if error.filename is None and isinstance(file.name, str):
        error.filename = file.name
    return error


def write_whole(path: str, content: bytes, aside: str | None = None) -> None:
    """Put a file in place of what has its name, which stays whole until then and where that fails.

    Args:
        path: As of ``AtomicFile``.
        content: All of it.
        aside: As of ``AtomicFile``.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    draft = AtomicFile(path, aside)
    try:
        try:
            draft.file.write(content)
        except OSError as error:
            raise named(error, draft.file) from None
        draft.publish()
    finally:
        draft.discard()
