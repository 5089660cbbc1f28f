"""Reads along with another process's download of a shard, as its file grows."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from ..errors import StoreError
from ..flow.process import has_linux
from ..stores.urls import redact
from .copy import Copy, Descriptor
from .folder import CopyState
from .locks import Progress, look

# From linux/inotify.h. An unlinked name is a change of attributes (the number of links).
_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVE_SELF = 0x2, 0x4, 0x8, 0x800
_IN_Q_OVERFLOW = 0x4000
_MASK = _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10

# When a process dies, the kernel reports its closed file just before it releases the lock on it (``__fput``
# in fs/file_table.c), and does not report the lock. So the file is checked once more after a close.
_LOOK_AGAIN_S = 0.1


class Inotify:
    """Calls back when watched files change, by Linux's inotify. It belongs to the running loop.

    Raises:
        OSError: The user has too many of these (``fs.inotify.max_user_instances``), or this is not Linux.
    """

    def __init__(self) -> None:
        if not has_linux():
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._number = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._changed: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._number, self._receive)

    def close(self) -> None:
        self._loop.remove_reader(self._number)
        os.close(self._number)

    @contextmanager
    def watch(self, number: int, changed: Callable[[], None]) -> Iterator[None]:
        """Call ``changed`` whenever the open file was written to, closed by a writer, renamed or unlinked.

        Raises:
            OSError: The user watches too many files (``fs.inotify.max_user_watches``), or there is no /proc.
        """
        # By its descriptor: the name may mean another file by now.
        path = f"/proc/self/fd/{number}".encode()
        watch = _checked(_libc().inotify_add_watch(self._number, path, _MASK))
        self._changed[watch] = changed
        try:
            yield
        finally:
            del self._changed[watch]
            _libc().inotify_rm_watch(self._number, watch)

    def _receive(self) -> None:
        events = b""
        with suppress(BlockingIOError):
            events = os.read(self._number, _READ_BYTES)
        changed, closed, offset = set(), set(), 0
        while offset < len(events):
            watch, mask, _, name_bytes = _EVENT.unpack_from(events, offset)
            offset += _EVENT.size + name_bytes
            changed |= set(self._changed) if mask & _IN_Q_OVERFLOW else {watch}
            if mask & _IN_CLOSE_WRITE:
                closed.add(watch)
        for watch in changed:
            self._call(watch)
        for watch in closed:
            self._loop.call_later(_LOOK_AGAIN_S, self._call, watch)

    def _call(self, watch: int) -> None:
        if watch in self._changed:
            self._changed[watch]()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.inotify_init1.argtypes = [ctypes.c_int]
    libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
    return libc


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


async def follow(file: Descriptor, url: str, inotify: Inotify, patience_s: float, copy: Copy) -> bool:
    """Read along with another process's download until the file is whole or does not grow any more.

    Args:
        file: Open, and locked by another process.
        url: For messages.
        inotify: Reports changes.
        patience_s: How long the file may stay unchanged: the process that fills it may be stopped.
        copy: Opened as soon as the header says what the file will contain.

    Returns:
        Whether the download ended; False if the file stayed unchanged for too long.

    Raises:
        OSError: It cannot be watched or read.
    """
    changed = asyncio.Event()
    seen: Progress | None = None
    with inotify.watch(file.number, changed.set):
        while True:
            changed.clear()
            progress = await file.run(look, file.number)
            _tell(copy, file, progress, url)
            if progress.ended:
                return True
            if progress != seen:
                seen = progress
                deadline_s = asyncio.get_running_loop().time() + patience_s
            try:
                async with asyncio.timeout_at(deadline_s):
                    await changed.wait()
            except TimeoutError:
                return False


def _tell(copy: Copy, file: Descriptor, progress: Progress, url: str) -> None:
    """Pass the progress on to the readers of the copy."""
    if copy.header is None and progress.state in (CopyState.FILLING, CopyState.COMPLETE):
        assert progress.header is not None, "a state comes from a header"
        copy.open(file, progress.header)
    if copy.header is None:
        return
    copy.grow(progress.filled)
    if progress.state is CopyState.COMPLETE:
        copy.end(whole=True)
    if progress.state is CopyState.REJECTED:
        what = "another process has just downloaded the object, and its digest was not the promised one"
        copy.end(error=StoreError(what, shard=redact(url)))
