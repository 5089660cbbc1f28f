"""Where shards are written to: a folder, or a prefix of an object store.

Laws:

* A shard is there when it is whole. What is being written has no name: in a folder it is a hidden file aside,
  for an object store a file that goes with its process.
* Beside the shards is ``.convert/``, the notes of the job: what it is, and of each finished shard what it is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from ..descriptors import occupy_standard_descriptors
from ..draft import Draft, write_whole
from ..stores.expanding import expand_home
from ..stores.options import options_of
from ..stores.urls import local_path, redact, scheme_of
from ..writer.open_shard import Pending

__all__ = ["NOTES", "Outlet", "make_outlet"]

#: The folder of notes, below the outlet's own.
NOTES = ".convert/"

#: Notes that are read at a time from an object store: ten thousand take seconds at a round trip of 20 ms,
#: and no store slows a client down for so few requests.
_AT_A_TIME = 32


class Outlet(Protocol):
    """Names are relative to it, with ``/`` between their parts. It pickles."""

    @property
    def shown(self) -> str:
        """Where it is, for messages."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Keep other runs out, as far as that can be; raises ValueError if one is at work."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """What is there, with lengths in bytes, but for what a killed run left half done."""
        ...

    def draft(self, name: str) -> Pending:
        """What a shard is written to."""
        ...

    def scratch(self) -> IO[bytes]:
        """A file without a name, with room for as much as goes into the shards."""
        ...

    def read(self, name: str) -> bytes | None:
        """A small file as a whole; None if there is none."""
        ...

    def read_each(self, names: Sequence[str]) -> Iterator[bytes | None]:
        """Small files in their order, read some at a time."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a small file, as a whole, in place of what is there."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that are there."""
        ...


def make_outlet(output: str | os.PathLike[str], options: Mapping[str, Any]) -> Outlet:
    """The outlet that the user has named.

    Raises:
        TypeError: No path.
        ValueError: A URL of what is only read, or options that do not fit.
    """
    if not isinstance(output, str | os.PathLike):
        raise TypeError(f"output should be a path or a URL, but got {type(output).__name__}")
    url = expand_home(os.fspath(output))
    scheme = scheme_of(url)
    if scheme.is_local:
        return FolderOutlet(os.path.abspath(local_path(url)))
    if not scheme.is_writable:
        raise ValueError(
            f"shards are written to a folder or an object store, not to {redact(url)}: write them to a "
            "folder, and upload that"
        )
    outlet = ObjectOutlet(url.rstrip("/") + "/", options_of(scheme, options))
    outlet.open()  # says what is wrong with the options
    return outlet


@dataclass(frozen=True)
class FolderOutlet:
    """A folder of this machine, which is made when it is first written to."""

    folder: str

    @property
    def shown(self) -> str:
        return self.folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        notes = os.path.join(self.folder, NOTES)
        occupy_standard_descriptors()
        missing = [*_missing(notes.rstrip(os.sep))]
        try:
            os.makedirs(notes, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"shards are written to a folder, but {self.folder!r} is a file") from None
        # Of the folder itself: there is no file that could be stale.
        fd = os.open(notes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(fd, self.folder)
            self._clean(notes)
            yield
        except BaseException:
            for folder in missing:  # a call that was refused leaves nothing; what is in use is not empty
                with suppress(OSError):
                    os.rmdir(folder)
            raise
        finally:
            os.close(fd)

    def _clean(self, notes: str) -> None:
        """Remove what a killed run left half done; nobody else is at work here."""
        for name in os.listdir(notes):
            if name.startswith(".") and name.endswith(".tmp"):
                os.unlink(os.path.join(notes, name))

    def sizes(self) -> Mapping[str, int]:
        found = {}
        for folder, _, names in os.walk(self.folder):
            below = os.path.relpath(folder, self.folder).replace(os.sep, "/")
            for name in names:
                with suppress(FileNotFoundError):
                    size = os.lstat(os.path.join(folder, name)).st_size
                    found[name if below == "." else f"{below}/{name}"] = size
        return found

    def draft(self, name: str) -> Pending:
        return Draft(os.path.join(self.folder, name), os.path.join(self.folder, NOTES))

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=os.path.join(self.folder, NOTES))

    def read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def read_each(self, names: Sequence[str]) -> Iterator[bytes | None]:
        return map(self.read, names)  # threads would take longer: local files of a few hundred bytes

    def write(self, name: str, content: bytes) -> None:
        write_whole(os.path.join(self.folder, name), content, os.path.join(self.folder, NOTES))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))


def _missing(folder: str) -> Iterator[str]:
    """The folders that it takes to make one, itself first."""
    while not os.path.lexists(folder):
        yield folder
        folder = os.path.dirname(folder)


def _lock(fd: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: there nothing keeps two runs apart
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another run is writing to {folder!r}: wait for its end, or write to another folder"
        ) from None
    except OSError as error:  # a network file system that locks no folders
        raise ValueError(
            f"{folder!r} cannot be locked ({error.strerror}), so that a second run would not be kept out: "
            "write to a local folder, and copy that, or to an object store"
        ) from None


@dataclass(frozen=True)
class ObjectOutlet:
    """A prefix of an object store, which knows no locks: two runs of one job would make the same objects."""

    url: str
    options: Mapping[str, Any] = field(repr=False)

    @property
    def shown(self) -> str:
        return redact(self.url)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def open(self) -> Any:
        """The objects; a client of its own each time, since threads and processes share none."""
        from ..stores.objects.writing import ObjectFolder

        return ObjectFolder(self.url, self.options)

    def sizes(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.open().sizes()
        return found

    def draft(self, name: str) -> Pending:
        return _Upload(self, name)

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self.open().read(name)
        return found

    def read_each(self, names: Sequence[str]) -> Iterator[bytes | None]:
        folder = self.open()
        with ThreadPoolExecutor(_AT_A_TIME, "asyncloader-notes") as threads:
            yield from threads.map(folder.read, names)

    def write(self, name: str, content: bytes) -> None:
        self.open().write(name, content)

    def remove(self, names: Iterable[str]) -> None:
        self.open().remove([*names])


class _Upload:
    """A shard in a file without a name, until it is put."""

    def __init__(self, outlet: ObjectOutlet, name: str) -> None:
        self._outlet = outlet
        self._name = name
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - publish or discard close it

    def publish(self) -> None:
        self.file.seek(0)
        self._outlet.open().write(self._name, self.file)
        self.file.close()

    def discard(self) -> None:
        self.file.close()
