"""What the C allocator is told, so that freed buffers are used again instead of faulted in anew.

It acts on the user's whole process: on other libraries, and for as long as the process lives. So there is as
little of it as pays, and what the user has set in the environment stays as it is.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

from .processors import usable_processors

__all__ = ["keep_freed_pages", "share_arenas"]

# The largest block that glibc still learns from (DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB on 64-bit machines).
_LESSON_BYTES = 31 << 20

_M_ARENA_MAX = -8  # malloc.h


@cache
def keep_freed_pages() -> None:
    """Teach glibc to keep the pages of freed buffers, as it learns from any program that frees a large one.

    By default it takes every buffer of 128 KiB from the kernel and gives it back at once, so that each
    chunk and each sample starts on fresh zeroed pages: measured here, 0.26 s of a CPU for each GB. When a
    mapped block is freed, glibc raises its thresholds to that block's size (malloc(3) and mallopt(3),
    M_MMAP_THRESHOLD): so we map one and free it, untouched. Unlike mallopt, this leaves alone whatever the
    user has set. Elsewhere than on glibc it does nothing.

    Once in a process: a second block would come from the heap, as was learnt, and be zeroed there, which took
    each pass 9 ms and the process 31 MiB.
    """
    bytes(_LESSON_BYTES)


def share_arenas() -> None:
    """Have the threads to come allocate from as many arenas as there are processors, not eight times as many.

    Each arena keeps freed pages of its own, by the lesson above up to 62 MiB, and each thread has an arena
    until there are so many: on threads that make samples of megabytes, hundreds of megabytes lay free while
    others were taken from the kernel. No more threads than there are processors run at a time, so that more
    arenas hardly save them a wait. Smaller thresholds would bound this as well, but cost a decoder of images
    a tenth more of the processor's time in page faults. It cannot be taken back (glibc fixes the number when
    it first counts), so this is for passes whose functions run on threads, and not where
    ``MALLOC_ARENA_MAX`` or ``GLIBC_TUNABLES`` says what the user wants. Elsewhere than on glibc it does
    nothing.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(AttributeError):  # musl has no such knob
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, usable_processors()))
