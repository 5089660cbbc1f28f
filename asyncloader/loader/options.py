"""The checks of parameters that torch does not make; the rest are torch's own, in its own words."""

from __future__ import annotations

import os
from threading import TIMEOUT_MAX
from typing import Any

from ..quantity import as_count, as_whole, parse_bytes

# A lane must be able to hold a first part and the block decoded from it, whatever the user says.
_LEAST_MEMORY = 16 << 20


def check_restarts(worker_restarts: object) -> None:
    """Check how many workers may be replaced.

    Raises:
        ValueError: Neither None nor a number of workers.
    """
    if worker_restarts is not None and ((number := as_whole(worker_restarts)) is None or number < 0):
        raise ValueError(
            "worker_restarts should be how many workers may be replaced in a pass, 0 or more, or None for "
            f"the default, but got worker_restarts={worker_restarts!r}"
        )


def check_batching(batching: object, batch_size: int | None, drop_last: bool) -> int | None:
    """The batch size for torch to see, None beside another batching.

    Raises:
        TypeError: ``batching`` is no batching, or ``batch_size`` is one.
        ValueError: A batch size, or ``drop_last``, beside it.
    """
    if hasattr(batch_size, "count_batches"):
        raise TypeError(
            f"batch_size should be a number of samples, but got batch_size={batch_size!r}: give that as "
            "batching="
        )
    if batching is None:
        return batch_size
    if not callable(getattr(batching, "open", None)) or isinstance(batching, type):
        raise TypeError(
            "batching should be TokenBatches(...), Buckets(...) or Pack(...), but got "
            f"{batching!r}; a number of samples is batch_size="
        )
    # 1 is torch's default, None what such a loader has: Lightning makes it anew with that.
    if batch_size not in (1, None) or drop_last:
        beside = [] if batch_size in (1, None) else [f"batch_size={batch_size!r}"]
        beside += [f"drop_last={drop_last!r}"] if drop_last else []
        raise ValueError(
            "batching option is mutually exclusive with batch_size and drop_last: it says by itself which "
            f"samples make a batch, but got {', '.join(beside)}"
        )
    return None


def check_streaming(
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    multiprocessing_context: Any,
    collate_fn: Any,
    worker_init_fn: Any,
    memory_limit: int | str,
) -> None:
    """Check what a stream does not take, before torch looks at the rest.

    Raises:
        TypeError: A function that cannot be called, or a memory limit that is no number of bytes.
        ValueError: Shuffling, a sampler, a start method for workers, or too small a memory limit.
    """
    if shuffle not in (None, False):
        raise ValueError(
            "DataLoader with IterableDataset: expected unspecified shuffle option, "
            f"but got shuffle={shuffle}; use .shuffle(window, seed=...) on the dataset"
        )
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                f"{name}={given}; a stream deals itself to ranks, .shuffle(window) gives its order, "
                "al.mix(..., weights=...) draws from several, and batching= says which samples make a batch"
            )
    if multiprocessing_context is not None:
        raise ValueError(
            "multiprocessing_context cannot be chosen for streaming datasets, but got "
            f"multiprocessing_context={multiprocessing_context!r}: their workers always come from a clean "
            "process that never runs the main module"
        )
    for name, fn in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if fn is not None and not callable(fn):
            raise TypeError(f"{name} should be callable, but got {type(fn).__name__}")
        if isinstance(fn, type) and hasattr(fn, "from_columns"):
            raise TypeError(
                f"{name} should be one of the class, such as {fn.__name__}(...), but got the class "
                f"{fn.__name__} itself"
            )
    memory_bytes(memory_limit)


def check_rest(timeout: float, prefetch_factor: object, generator: object) -> None:
    """Check what torch lets pass and a stream cannot do; torch has looked at them before.

    Raises:
        TypeError: The generator is none.
        ValueError: A timeout that no clock knows, or part of a batch to make ahead.
    """
    import torch

    if not 0 <= timeout <= TIMEOUT_MAX:
        raise ValueError(
            f"timeout should be a number of seconds, 0 for no limit, but got timeout={timeout!r}"
        )
    if prefetch_factor is not None:
        as_count("prefetch_factor", prefetch_factor)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator should be a torch.Generator, but got {type(generator).__name__}")


def check_audit(audit: object) -> None:
    """Check where an audit is to be written.

    Raises:
        TypeError: It is no path.
        ValueError: It is a URL.
    """
    if audit is None:
        return
    if not isinstance(audit, str | os.PathLike) or isinstance(os.fspath(audit), bytes):
        raise TypeError(f"audit should be the path of a folder, but got {type(audit).__name__}: {audit!r}")
    if "://" in os.fspath(audit):
        raise ValueError(
            f"audit should be the path of a folder on disk, but got audit={audit!r}; files that are appended "
            "to cannot be in an object store"
        )


def check_trace(trace: object) -> None:
    """Check where a trace is to be written.

    Raises:
        TypeError: It is no path.
        ValueError: It is a URL, or names no file.
    """
    if trace is None:
        return
    if not isinstance(trace, str | os.PathLike) or isinstance(os.fspath(trace), bytes):
        raise TypeError(f"trace should be the path of a file, but got {type(trace).__name__}: {trace!r}")
    path = os.fspath(trace)
    if "://" in path or not os.path.basename(path):
        raise ValueError(
            f'trace should be the path of a file on disk, such as "run.json", but got trace={trace!r}'
        )


def check_uneven(uneven: object) -> None:
    """Check what is to be done where ranks have different numbers of batches.

    Raises:
        ValueError: None of the policies.
    """
    if uneven not in (None, "stop", "pad", "raise", "ignore"):
        raise ValueError(
            f"uneven should be 'stop', 'pad', 'raise', 'ignore' or None, but got uneven={uneven!r}"
        )


def memory_bytes(memory_limit: int | str) -> int:
    """What ``memory_limit`` means, in bytes.

    Raises:
        TypeError: It is neither an int nor a text.
        ValueError: A text that is no number of bytes, or less than a lane needs.
    """
    size = parse_bytes("memory_limit", memory_limit)
    if size < _LEAST_MEMORY:
        raise ValueError(
            f"memory_limit should be at least {_LEAST_MEMORY} bytes (16 MiB), "
            f"but got memory_limit={memory_limit!r}"
        )
    return size
