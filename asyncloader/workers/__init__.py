"""Worker processes, their shared-memory transport, their life and death.

A *job* is a callable that returns an iterator of ``(batch, note)``. It is sent by cloudpickle to a process
of its own, and its batches come back as tensors over shared memory. Linux only: it rests on memfd and on
passing descriptors; elsewhere starting a pool raises RuntimeError.
"""

from __future__ import annotations

from .forkserver import ForkServer
from .link import AnyPool, AnyWorker, Job
from .pool import WorkerPool, wait_any, wait_any_async
from .worker import Worker

__all__ = [
    "AnyPool",
    "AnyWorker",
    "ForkServer",
    "Job",
    "Worker",
    "WorkerPool",
    "wait_any",
    "wait_any_async",
]
