"""Where shards are written: a folder, or a prefix of an object store.

Laws:

* A file appears under its name when it is whole. Until then it has a hidden name in a folder; for an object
  store it is an unnamed file on this machine.
* A destination can be pickled. Each process makes its own client of an object store.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from ..atomic_file import AtomicFile, write_whole
from ..flow.process import occupy_standard_descriptors
from ..stores.expanding import expand_home
from ..stores.router import options_of
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of
from .expectations import Expected
from .index_building import update_index
from .index_entries import format_index, parse_own

if TYPE_CHECKING:
    from ..stores.objects.store import ObjectFolder

#: Small objects to read at a time: ten thousand take some seconds with a round trip of 20 ms, and no store
#: throttles a client for so few requests.
_AT_A_TIME = 32


def open_destination(
    output: str | os.PathLike[str], options: Mapping[str, Any], aside: str = ""
) -> Destination:
    """The destination that the caller has named. No I/O happens yet.

    Args:
        output: A folder, or a prefix of an object store.
        options: Storage options, for an object store.
        aside: A folder below it for unfinished files; by default they are in the folder itself.

    Raises:
        TypeError: ``output`` is neither a string nor a path, or an option has a wrong type.
        ValueError: A URL that cannot be written to, or options that do not fit.
    """
    if not isinstance(output, str | os.PathLike):
        raise TypeError(f"output should be a path or a URL, but got {type(output).__name__}")
    url = expand_home(os.fspath(output))
    scheme = scheme_of(url)
    if scheme.is_local:
        return FolderDestination(local_path(url), aside)
    if not scheme.is_writable:
        raise ValueError(
            f"shards are written to a folder or an object store, not to {redact(url)}: write them to a "
            "folder, and upload it"
        )
    destination = ObjectDestination(url.rstrip("/") + "/", options_of(scheme, options))
    destination.connect()  # checks the options
    return destination


@dataclass(frozen=True)
class FolderDestination:
    """A folder of this machine. It is made with the first file.

    Args:
        folder: Its path; empty for the current one.
        aside: As for ``open_destination``.
    """

    folder: str
    aside: str = ""

    @property
    def shown(self) -> str:
        """Where it is, for messages."""
        return self.folder

    def path_of(self, name: str) -> str:
        """The path or URL of a file, for messages."""
        return os.path.join(self.folder, name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder, and remove unfinished files of a killed run.

        Raises:
            ValueError: Another run holds the lock, the folder cannot be locked, or it is a file.
        """
        aside = os.path.join(self.folder, self.aside)
        occupy_standard_descriptors()
        missing = [*_missing(aside.rstrip(os.sep))]
        try:
            os.makedirs(aside, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"shards are written to a folder, but {self.folder!r} is a file") from None
        # The lock is on the folder itself: no lock file can be stale.
        fd = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(fd, self.folder)
            _remove_drafts(aside)
            try:
                yield
            finally:
                _remove_drafts(aside)  # of processes that were killed since another one failed
        except BaseException:
            for folder in missing:  # a refused call leaves nothing; folders with files stay
                with suppress(OSError):
                    os.rmdir(folder)
            raise
        finally:
            os.close(fd)

    def sizes(self) -> Mapping[str, int]:
        """Length in bytes of each file below the folder, by its name with ``/`` between its parts."""
        found = {}
        for folder, _, names in os.walk(self.folder or "."):
            below = os.path.relpath(folder, self.folder or ".").replace(os.sep, "/")
            for name in names:
                with suppress(FileNotFoundError):
                    size = os.lstat(os.path.join(folder, name)).st_size
                    found[name if below == "." else f"{below}/{name}"] = size
        return found

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return os.path.exists(self.path_of(name))

    def draft(self, name: str) -> Pending:
        """A new file. A missing folder is made."""
        occupy_standard_descriptors()
        try:
            os.makedirs(self.folder or ".", exist_ok=True)
        except FileExistsError:  # its message would sound as if the shard existed
            raise NotADirectoryError(
                errno.ENOTDIR, "shards are written to a folder, but this is a file", self.folder
            ) from None
        return AtomicFile(self.path_of(name), os.path.join(self.folder, self.aside))

    def scratch(self) -> IO[bytes]:
        """An unnamed file on the disk of the folder."""
        return tempfile.TemporaryFile(dir=os.path.join(self.folder, self.aside))

    def read(self, name: str) -> bytes | None:
        """A small file; None if there is none."""
        try:
            with open(self.path_of(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def read_each(self, names: Sequence[str]) -> Iterator[bytes | None]:
        """Several small files, in order."""
        return map(self.read, names)  # threads would be slower

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a small file; a reader sees the old or the new one."""
        write_whole(self.path_of(name), content, os.path.join(self.folder, self.aside))

    def remove(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self.path_of(name))

    def add_to_index(self, entries: Mapping[str, Expected]) -> None:
        """Add shards to the folder's index. Other writers may do so at the same time.

        Raises:
            FormatError: There is a file of its name that is not an index; it stays.
            OSError: It cannot be written.
        """
        update_index(self.path_of(INDEX_NAME), entries)


def _missing(folder: str) -> Iterator[str]:
    """The folders to make so that one exists, itself first."""
    while not os.path.lexists(folder):
        yield folder
        folder = os.path.dirname(folder)


def _remove_drafts(folder: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".tmp"):
            os.unlink(os.path.join(folder, name))


def _lock(fd: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # Windows, where two runs are not kept apart
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another run is writing to {folder!r}: wait until it ends, or write to another folder"
        ) from None
    except OSError as error:  # a network file system that cannot lock folders
        raise ValueError(
            f"{folder!r} cannot be locked ({error.strerror}), so a second run could not be kept out: "
            "write to a local folder and copy it, or write to an object store"
        ) from None


@dataclass(frozen=True)
class ObjectDestination:
    """A prefix of an object store, with the methods of ``FolderDestination``.

    There are no locks. Two runs of one job would write the same objects. If two writers add shards to the
    index in the same moment, one may lose its entries.

    Args:
        url: Ends with ``/``.
        options: Storage options.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)

    @property
    def shown(self) -> str:
        return redact(self.url)

    def path_of(self, name: str) -> str:
        return self.shown + name

    def alone(self) -> nullcontext[None]:
        return nullcontext()

    def connect(self) -> ObjectFolder:
        """A new client for the objects: threads and processes share none."""
        from ..stores.objects.store import ObjectFolder

        return ObjectFolder(self.url, self.options)

    def sizes(self) -> Mapping[str, int]:
        return self.connect().sizes()

    def exists(self, name: str) -> bool:
        return self.connect().exists(name)

    def draft(self, name: str) -> Pending:
        return _Upload(self, name)

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()

    def read(self, name: str) -> bytes | None:
        return self.connect().read(name)

    def read_each(self, names: Sequence[str]) -> Iterator[bytes | None]:
        objects = self.connect()
        with ThreadPoolExecutor(_AT_A_TIME, "asyncloader-notes") as threads:
            yield from threads.map(objects.read, names)

    def write(self, name: str, content: bytes | IO[bytes]) -> None:
        self.connect().write(name, content)

    def remove(self, names: Iterable[str]) -> None:
        self.connect().remove([*names])

    def add_to_index(self, entries: Mapping[str, Expected]) -> None:
        content = self.read(INDEX_NAME)
        kept = {} if content is None else parse_own(content, self.path_of(INDEX_NAME))
        self.write(INDEX_NAME, format_index({**kept, **entries}))


Destination: TypeAlias = FolderDestination | ObjectDestination

Pending: TypeAlias = "AtomicFile | _Upload"
"""A file that is being written, and appears when it is published."""


class _Upload:
    """A shard in an unnamed file, which is uploaded when it is whole."""

    def __init__(self, destination: ObjectDestination, name: str) -> None:
        self._destination = destination
        self._name = name
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - publish or discard close it

    def publish(self) -> None:
        self.file.seek(0)
        self._destination.write(self._name, self.file)
        self.file.close()

    def discard(self) -> None:
        self.file.close()
