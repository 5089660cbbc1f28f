"""The file of a traced pass: its name, how it is written whole, and how it is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..draft import Draft, write_whole
from .timeline import Event
from .told import VERSION, Told

__all__ = ["FORMAT", "check_run_path", "read_run", "run_path", "write_run"]

#: The key beside ``traceEvents`` that all else is under.
FORMAT = "asyncloader"

# Many times what is written of a pass, for whoever has put those of ranks together.
_MOST_BYTES = 1 << 29


def run_path(path: str, *, epoch: int, whose: str, taken: Collection[str]) -> str:
    """The file of one pass: the path itself for the first epoch of a process that is alone.

    Args:
        path: As the user said it.
        epoch: Named before the suffix where it is not 0.
        whose: What the process is called among others, such as ``"rank 1"``; empty where it is alone.
        taken: Names that earlier passes of the same loader have got; none is given twice.
    """
    stem, suffix = os.path.splitext(path)
    if whose:
        stem += "-" + whose.replace(",", "").replace(" ", "-")
    if epoch:
        stem += f"-epoch-{epoch}"
    name, again = stem + suffix, 1
    while name in taken:
        again += 1
        name = f"{stem}-{again}{suffix}"
    return name


def write_run(path: str, events: Sequence[Event], summary: Mapping[str, Any]) -> None:
    """Write the file, which has its name only when it is whole.

    Raises:
        OSError: The folder is not there or takes no file.
    """
    run = {"displayTimeUnit": "ms", FORMAT: {"version": VERSION, **summary}, "traceEvents": events}
    with _naming(path, "the trace of a pass, which has ended, was not written"):
        write_whole(path, msgspec.json.encode(run))


def check_run_path(path: str) -> None:
    """Check, before there is anything to lose, that the file can be written.

    Raises:
        OSError: Its folder is not there or takes no file of that name, or a folder has it.
    """
    with _naming(path, "no trace could be written; name another file, or see to it that its folder takes it"):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        Draft(path).discard()


@contextmanager
def _naming(path: str, told: str) -> Iterator[None]:
    """Have errors tell what was written, and where to."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(error.errno, f"trace={path!r}: {told}: {reason}") from None


def read_run(path: str) -> dict[str, Any]:
    """What stands in the file of a pass beside its events; of what ``Told`` names, all is as it says.

    Raises:
        OSError: It cannot be read.
        ValueError: It is none, or of a later version of the library.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: expected a file of at most {_MOST_BYTES:,} bytes, but it has more")
    try:
        # The events, which are nearly all of it, are passed over.
        run = msgspec.json.decode(content, type=_File).asyncloader
        if run.get("version") == VERSION:
            msgspec.convert(run, Told, str_keys=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: expected a file that DataLoader(trace=...) has written: {error}") from None
    if run.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected version {VERSION} of what DataLoader(trace=...) writes, but it is "
            f"{run.get('version')!r}: read it with the version of the library that has written it"
        )
    return run


class _File(msgspec.Struct):
    asyncloader: dict[str, Any]
