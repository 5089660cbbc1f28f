"""How jobs and processes end, in the parent's words."""

from __future__ import annotations

import pickle
import signal

from .._flow.channel import ChannelClosed, EndOfChannel

__all__ = ["describe_exit", "rebuild_error"]


def rebuild_error(text: str, pickled: bytes | None, worker: int, pid: int | None) -> Exception:
    """What a job raised, as its own type if that can be had here too, with where it happened as a note.

    Args:
        text: The worker's traceback; empty if it says no more than the error itself.
        pickled: The error, if it can be pickled.
        worker: Number of the worker.
        pid: Its process id.
    """
    error: Exception | None = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = None  # e.g. its module is importable in the worker alone
    if not isinstance(error, Exception) or isinstance(error, EndOfChannel | ChannelClosed):
        error = RuntimeError(text.strip().rpartition("\n")[2])
    error.add_note(f"in worker {worker} (pid {pid})" + (f":\n{text}" if text else ""))
    return error


def describe_exit(exitcode: int | None) -> str:
    """A half sentence on how a process ended, and what that may mean."""
    if exitcode is None:
        return "was lost together with its fork server"
    if exitcode >= 0:
        return f"ended with exit status {exitcode}"
    name = signal.Signals(-exitcode).name
    hints = {
        "SIGKILL": " (the kernel's out-of-memory killer sends it; fewer workers or smaller batches help)",
        "SIGSEGV": " (a crash in native code; PYTHONFAULTHANDLER=1 shows where)",
        "SIGBUS": " (shared memory could not be had; fewer workers or smaller batches help)",
    }
    return f"was killed by signal {name}{hints.get(name, '')}"
