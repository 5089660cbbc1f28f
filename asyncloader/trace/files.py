"""The file of a traced pass: its name, how it is written whole, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ..draft import Draft

__all__ = ["FORMAT", "read_run", "run_path", "write_run"]

#: The key beside ``traceEvents`` that all else is under.
FORMAT = "asyncloader"

_VERSION = 1


def run_path(path: str, *, epoch: int, rank: int, world_size: int, taken: Collection[str]) -> str:
    """The file of one pass: the path itself for the first epoch of a rank alone.

    Args:
        path: As the user said it.
        epoch: Named before the suffix where it is not 0.
        rank: Likewise, where there are others.
        world_size: How many ranks there are.
        taken: Names that earlier passes of the same loader have got; none is given twice.
    """
    stem, suffix = os.path.splitext(path)
    if world_size > 1:
        stem += f"-rank-{rank}"
    if epoch:
        stem += f"-epoch-{epoch}"
    name, again = stem + suffix, 1
    while name in taken:
        again += 1
        name = f"{stem}-{again}{suffix}"
    return name


def write_run(path: str, events: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Write the file, which has its name only when it is whole.

    Raises:
        OSError: The folder is not there or takes no file.
    """
    run = {"displayTimeUnit": "ms", FORMAT: {"version": _VERSION, **summary}, "traceEvents": events}
    draft = Draft(path)
    try:
        draft.file.write(msgspec.json.encode(run))
        draft.publish()
    finally:
        draft.discard()


def read_run(path: str) -> dict[str, Any]:
    """What stands in the file of a pass beside its events.

    Raises:
        OSError: It cannot be read.
        ValueError: It is none, or of a later version of the library.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        # The events, which are nearly all of it, are passed over.
        run = msgspec.json.decode(content, type=_File).asyncloader
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: expected a file that DataLoader(trace=...) has written: {error}") from None
    if run.get("version") != _VERSION:
        raise ValueError(
            f"{path}: expected version {_VERSION} of what DataLoader(trace=...) writes, but it is "
            f"{run.get('version')!r}: read it with the version of the library that has written it"
        )
    return run


class _File(msgspec.Struct):
    asyncloader: dict[str, Any]
