"""The few C library calls that Python does not offer, or not in the form needed here."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

__all__ = ["die_with_parent", "empty", "keep_freed_memory", "map_shared", "name_process", "unmap"]

_MADV_REMOVE = 9  # the same number on all of Linux's architectures
_MAP_FAILED = ctypes.c_void_p(-1).value
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc


def map_shared(descriptor: int, size_bytes: int) -> int:
    """Map the file, readable and writable, and return the address.

    Not ``mmap.mmap``: before Python 3.13 that keeps a duplicate of the descriptor for as long as the
    mapping lives, so a user who keeps batches would run out of descriptors.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = _libc().mmap(None, size_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size_bytes} bytes of shared memory: {os.strerror(number)}")
    return address


def unmap(address: int, size_bytes: int) -> None:
    _libc().munmap(address, size_bytes)


def empty(address: int, size_bytes: int) -> None:
    """Give the pages of a shared mapping back to the kernel, for all who map them; they read as zeros."""
    _libc().madvise(address, size_bytes, _MADV_REMOVE)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process ``signal_number`` when its parent ends, however it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def name_process(name: str) -> None:
    """The name shown by ``top`` and the out-of-memory killer; the kernel keeps 15 bytes of it."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _libc().prctl(_PR_SET_NAME, ctypes.addressof(text), 0, 0, 0)


def keep_freed_memory() -> None:
    """Let malloc reuse what was freed instead of giving it back to the kernel.

    By default glibc maps each buffer above 128 KiB anew and trims the heap's end. Bodies and batches are
    of that size, so each pays a page fault per 4 KiB, which costs more than parsing the HTTP they came
    in. 32 MiB is the highest mmap threshold glibc accepts.
    """
    try:
        mallopt = _libc().mallopt
    except AttributeError:  # musl has no such knobs
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)
