"""Keeps descriptors 0, 1 and 2 what everybody takes them for: standard input, output and error."""

from __future__ import annotations

import os

__all__ = ["occupy_standard_descriptors"]


def occupy_standard_descriptors() -> None:
    """Open ``os.devnull`` in the place of those that are closed, for the rest of the process's life.

    Called before anything of ours opens a descriptor that lives on. In a process that was started with
    one of the three closed, as services are, a socket would get its number: uvloop aborts the process
    when it closes such a one, and what C code prints to standard error would go to the other end, or
    into a shard. They stay open, and inheritable as the three always are, since to give the numbers back
    would hand them to the next file. What Python knows as ``sys.stdin``, ``sys.stdout`` and ``sys.stderr``
    stays as it was. Where all three are open nothing changes, at the cost of one system call or two.
    """
    # The system gives the lowest number that is free.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
