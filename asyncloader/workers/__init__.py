"""Worker processes: how they start and end, and their shared-memory transport.

A *job* is a callable that returns an iterator of ``(batch, note)``. It is sent by cloudpickle to a process
of its own, and its batches come back as tensors over shared memory. On any Unix; Windows has no fork, and
there starting a pool raises RuntimeError.
"""
