"""Waits for another process's download of a shard."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from ..flow.process import has_linux
from .copy import Descriptor
from .locks import is_locked

# From linux/inotify.h. An unlinked name is a change of attributes (the number of links).
_IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVE_SELF = 0x4, 0x8, 0x800
_READ_BYTES = 64 << 10

# The kernel reports none of the releases of a lock. A process that has filled a file releases it just after
# it has renamed the file; when a process dies, its closed file is reported just before (``__fput`` in
# fs/file_table.c). So files are checked once more a little later.
_LOOK_AGAIN_S = 0.1


class Inotify:
    """Reports that a watched file may have got its last byte, by Linux's inotify, for the running loop.

    Attributes:
        changed: Set when any watched file was renamed, removed, or closed by a writer; then there is a new
            event in its place.

    Raises:
        OSError: The user has too many of these (``fs.inotify.max_user_instances``), or this is not Linux.
    """

    def __init__(self) -> None:
        if not has_linux():
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._number = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._number, self._receive)

    def close(self) -> None:
        self._loop.remove_reader(self._number)
        os.close(self._number)

    @contextmanager
    def watch(self, number: int) -> Iterator[None]:
        """Watch an open file.

        Raises:
            OSError: The user watches too many files (``fs.inotify.max_user_watches``), or there is no /proc.
        """
        # By its descriptor: the name may mean another file by now.
        path = f"/proc/self/fd/{number}".encode()
        mask = _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVE_SELF
        watch = _checked(_libc().inotify_add_watch(self._number, path, mask))
        try:
            yield
        finally:
            _libc().inotify_rm_watch(self._number, watch)

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._number, _READ_BYTES)
        self._wake()
        self._loop.call_later(_LOOK_AGAIN_S, self._wake)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


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


async def wait_filled(file: Descriptor, inotify: Inotify, patience_s: float) -> bool:
    """Wait until no process fills a file any more.

    Args:
        file: Open, and locked by another process.
        inotify: Reports changes.
        patience_s: How long the file may stay as long as it is: the process that fills it may be stopped.

    Returns:
        False if it did not grow for so long.

    Raises:
        OSError: It cannot be watched or read.
    """
    clock = asyncio.get_running_loop().time
    size_bytes, deadline_s = -1, clock()
    with inotify.watch(file.number):
        while True:
            changed = inotify.changed  # before looking: what is reported meanwhile counts
            if not await file.run(is_locked, file.number):
                return True
            # Any process that looks at the file is reported too, so only bytes move the deadline.
            if (found_bytes := (await file.run(os.fstat, file.number)).st_size) != size_bytes:
                size_bytes, deadline_s = found_bytes, clock() + patience_s
            elif clock() >= deadline_s:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await changed.wait()
