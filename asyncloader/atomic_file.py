"""A file that gets its name only when it is complete."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import IO


class AtomicFile:
    """A new file under a hidden name, which gets its own name when it is published.

    A process that is killed leaves at most the hidden file, which is not read and may be removed.

    Args:
        path: The name of the file. A file that has it stays as it is until then.
        aside: The folder of the hidden file, on the same file system; None for that of ``path``.

    Raises:
        OSError: The folder does not exist, or no file can be made in it.
    """

    def __init__(self, path: str, aside: str | None = None) -> None:
        self._path = path
        folder, name = os.path.split(path)
        self._hidden = os.path.join(folder if aside is None else aside, f".{name}.{secrets.token_hex(8)}.tmp")
        #: To write to; call ``publish`` or ``discard`` afterwards.
        self.file: IO[bytes] = open(self._hidden, "xb")  # noqa: SIM115 - publish or discard close it

    def publish(self) -> None:
        """Close the file and give it its name. If that fails, call ``discard``."""
        try:
            self.file.flush()
            # Otherwise a power cut may leave an empty file under the new name.
            os.fsync(self.file.fileno())
        except OSError as error:
            raise named(error, self.file) from None
        self.file.close()
        os.replace(self._hidden, self._path)

    def discard(self) -> None:
        """Close and remove the file, unless it was published."""
        with suppress(Exception):  # flushing fails on a full disk
            self.file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._hidden)


def named(error: OSError, file: IO[bytes]) -> OSError:
    """The error of writing to a file, with the file's name, which the system's error may lack."""
    if error.filename is None and isinstance(file.name, str):
        error.filename = file.name
    return error


def write_whole(path: str, content: bytes, aside: str | None = None) -> None:
    """Write a file, or replace one, as a whole; an existing file stays as it is if that fails.

    Args:
        path: As of ``AtomicFile``.
        content: All of it.
        aside: As of ``AtomicFile``.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
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
