"""Linux's word on what happens to a file, delivered to the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

__all__ = ["Inotify"]

# From linux/inotify.h. An unlinked name is a change of attributes (the number of links).
_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVE_SELF = 0x2, 0x4, 0x8, 0x800
_IN_Q_OVERFLOW = 0x4000
_MASK = _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10

# The kernel tells of a dying process's closed file just before it gives up the lock on it (``__fput`` in
# fs/file_table.c), and nothing tells of the lock. So after a close there is one more look.
_LOOK_AGAIN_S = 0.1


class Inotify:
    """Calls back when watched files change. Belongs to the running loop.

    Raises:
        OSError: The user has too many of these (``fs.inotify.max_user_instances``), or the platform none.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
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
            OSError: The user watches too many files (``fs.inotify.max_user_watches``), or /proc is missing.
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
