"""The library's exceptions, named by whose fault they report.

A wrong call raises ``ValueError``, ``TypeError`` or ``RuntimeError`` before any I/O; an exception of
the user's own function keeps its type. What is left is the world's fault, and lives here.
"""

from __future__ import annotations

import signal

__all__ = ["Error", "FormatError", "RanksError", "SkipBudgetError", "StoreError", "WorkerDiedError"]


class Error(Exception):
    """The base of the library's own errors: ``except al.Error``. Each says where, in its attributes.

    Each also has a standard exception as a base. Wrong calls raise ``ValueError``, ``TypeError`` or
    ``RuntimeError``, and functions of yours their own exceptions; these are no ``Error``.
    """

    # Attributes travel through pickle (``BaseException.__reduce__`` keeps ``__dict__``), so that an error
    # raised in a worker process names the same place in the parent.

    _places: tuple[str, ...] = ()

    def __init__(self, message: str, **places: object) -> None:
        super().__init__(message)
        for name in self._places:
            setattr(self, name, places.pop(name, None))
        if places:
            raise TypeError(f"unknown place {sorted(places)}; {type(self).__name__} has {self._places}")

    def __str__(self) -> str:
        known = [(name, getattr(self, name, None)) for name in self._places]
        where = ", ".join(f"{name} {value}" for name, value in known if value is not None)
        return f"{self.args[0]} [{where}]" if where else str(self.args[0])


class StoreError(Error, OSError):
    """Bytes could not be had: missing object, refused access, cut body, changed object.

    Attributes:
        shard: The URL or path, without query and user info.
        status: The HTTP status, where there is one.
        offset: First byte that could not be read.
    """

    _places = ("shard", "status", "offset")
    shard: str | None
    status: int | None
    offset: int | None


class FormatError(Error, ValueError):
    """A shard's bytes are not what its format promises: truncated, corrupt or of another format.

    Also when a shard of Parquet or Arrow has not what ``columns`` and ``filters`` ask for: it has no such
    column, or one whose type the filter cannot be applied to. That is only known when it is read.

    Attributes:
        shard: The URL or path, without query and user info.
        offset: Byte offset in the (decompressed) shard at which the fault was found.
        sample: Index in the shard of the sample being read, counted from 0.
    """

    _places = ("shard", "offset", "sample")
    shard: str | None
    offset: int | None
    sample: int | None


class WorkerDiedError(Error, RuntimeError):
    """A worker process ended without finishing its work: killed, crashed, or out of memory.

    Attributes:
        worker: Number of the worker within its rank, from 0.
        pid: Its process id.
        exitcode: Its exit status; ``-n`` if signal ``n`` ended it; None if that is not known.
        lane: Which its next batch was to come from.
        shard: What it was to be read from, by URL or path, without query and user info; None if not of a
            shard.
        sample: Index, in the shard or the lane's iterable, of the first sample to be read for it. Where
            samples are shuffled, it is the first one of the window.
    """

    _places = ("worker", "pid", "exitcode", "lane", "shard", "sample")
    worker: int | None
    pid: int | None
    exitcode: int | None
    lane: int | None
    shard: str | None
    sample: int | None


class RanksError(Error, RuntimeError):
    """The ranks of a training cannot go on together: one left the pass, was lost, or has run dry.

    Also before the first batch, where ``uneven=`` is not given and ranks are dealt unequal or unknown shares.

    Attributes:
        rank: The rank that raises it.
        step: Number of the batch of this pass that the ranks did not agree on, from 0.
    """

    _places = ("rank", "step")
    rank: int | None
    step: int | None


class SkipBudgetError(Error, RuntimeError):
    """More samples or shards were skipped than ``al.SkipErrors`` allows; its cause is the last error of them.

    Attributes:
        epoch: Number of the pass.
        rank: Whose it was.
        lane: In which the last one was skipped.
    """

    _places = ("epoch", "rank", "lane")
    epoch: int | None
    rank: int | None
    lane: int | None


def describe_exit(exitcode: int | None) -> str:
    """A half sentence on how a worker process ended, and what that may mean."""
    if exitcode is None:
        return "was lost together with its fork server"
    if exitcode >= 0:
        return f"ended with exit status {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal that has no name
        name = str(-exitcode)
    hints = {
        "SIGKILL": " (the kernel's out-of-memory killer sends it; fewer workers or smaller batches help)",
        "SIGSEGV": " (a crash in native code; PYTHONFAULTHANDLER=1 shows where)",
        "SIGBUS": " (shared memory could not be had; fewer workers or smaller batches help)",
    }
    return f"was killed by signal {name}{hints.get(name, '')}"
