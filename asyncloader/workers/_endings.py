"""How processes end, in the parent's words."""

from __future__ import annotations

import signal

__all__ = ["describe_exit"]


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
