"""The checks of options that torch does not make; the others are torch's own, in its own words."""

from __future__ import annotations

import os
from threading import TIMEOUT_MAX
from typing import Any

from ..quantity import as_count, as_whole, parse_bytes

# A lane must be able to hold a first part and the block decoded from it, whatever the user asks for.
_LEAST_MEMORY = 16 << 20


def check_batching(batching: object, batch_size: int | None, drop_last: bool) -> int | None:
    """The batch size that torch gets: None beside another batching.

    Raises:
        TypeError: ``batching`` is not a batching, or ``batch_size`` is one.
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
    # 1 is torch's default. None is what a loader with a batching has: Lightning makes it anew with that.
    if batch_size not in (1, None) or drop_last:
        beside = [] if batch_size in (1, None) else [f"batch_size={batch_size!r}"]
        beside += [f"drop_last={drop_last!r}"] if drop_last else []
        raise ValueError(
            "batching option is mutually exclusive with batch_size and drop_last: it decides which samples "
            f"make a batch (Pack has a batch_size= of its own), but got {', '.join(beside)}"
        )
    return None


def check_streaming(
    loader: Any,
    *,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    num_workers: Any,
    multiprocessing_context: Any,
    **functions: Any,
) -> None:
    """Check the options of a stream before torch looks at its own.

    Args:
        loader: Has the library's own options, and none of torch's yet.
        shuffle, sampler, batch_sampler, num_workers, multiprocessing_context: As given.
        functions: Those that the user gave, by the names of their options.

    Raises:
        TypeError: A function that cannot be called, or an option for torch's kinds of dataset.
        ValueError: Shuffling, a sampler, a start method for workers; or a number or a policy out of range.
    """
    check_path("audit", "folder", loader.audit)
    if loader.snapshot_every_n_steps != 1:
        raise TypeError(
            "snapshot_every_n_steps is for iterable datasets of torch's kind, but got "
            f"snapshot_every_n_steps={loader.snapshot_every_n_steps} for a stream, where each batch carries "
            "its position"
        )
    restarts, uneven = loader.worker_restarts, loader.uneven
    if restarts is not None and ((number := as_whole(restarts)) is None or number < 0):
        raise ValueError(
            "worker_restarts should be how many workers may be replaced in a pass, 0 or more, or None for "
            f"the default, but got worker_restarts={restarts!r}"
        )
    if uneven not in (None, "stop", "pad", "raise", "ignore"):
        raise ValueError(
            f"uneven should be 'stop', 'pad', 'raise', 'ignore' or None, but got uneven={uneven!r}"
        )
    if shuffle not in (None, False):
        raise ValueError(
            "DataLoader with IterableDataset: expected unspecified shuffle option, "
            f"but got shuffle={shuffle}; use .shuffle(window, seed=...) on the dataset"
        )
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                f"{name}={given}; a stream has no indices: each rank reads its own part, .shuffle(window) "
                "sets the order, al.mix(..., weights=...) draws from several datasets, and batching= decides "
                "which samples make a batch"
            )
    as_count("num_workers", num_workers, least=0)
    if multiprocessing_context is not None:
        raise ValueError(
            "multiprocessing_context cannot be chosen for streaming datasets, but got "
            f"multiprocessing_context={multiprocessing_context!r}: their workers always come from a clean "
            "process that never runs the main module"
        )
    for name, fn in functions.items():
        if fn is not None and not callable(fn):
            raise TypeError(f"{name} should be callable, but got {type(fn).__name__}")
        if isinstance(fn, type) and hasattr(fn, "from_columns"):
            raise TypeError(
                f"{name} should be an instance of the class, such as {fn.__name__}(...), but got the class "
                f"{fn.__name__} itself"
            )
    if loader.memory_limit is not None:
        memory_bytes(loader.memory_limit)


def check_attached(timeout: float, prefetch_factor: object, generator: object) -> None:
    """Check what torch accepts and a stream cannot use, after torch has looked at its parameters.

    Raises:
        TypeError: The generator is not one of torch's.
        ValueError: A timeout that no clock knows, or a number of batches ahead that is not whole.
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


def check_path(name: str, of: str, given: object) -> None:
    """Check where an audit or a trace is written.

    Args:
        name: Of the option.
        of: ``"folder"`` or ``"file"``.
        given: The path, or None.

    Raises:
        TypeError: It is not a path.
        ValueError: It is a URL, or names no file where it should.
    """
    if given is None:
        return
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise TypeError(f"{name} should be the path of a {of}, but got {type(given).__name__}: {given!r}")
    path = os.fspath(given)
    if "://" in path or not (of == "folder" or os.path.basename(path)):
        raise ValueError(f"{name} should be the path of a {of} on disk, not a URL, but got {name}={given!r}")


def memory_bytes(memory_limit: int | str) -> int:
    """What ``memory_limit`` means, in bytes.

    Raises:
        TypeError: It is neither an int nor a text.
        ValueError: A text that is not a number of bytes, or less than a lane needs.
    """
    size = parse_bytes("memory_limit", memory_limit)
    if size < _LEAST_MEMORY:
        raise ValueError(
            f"memory_limit should be at least {_LEAST_MEMORY} bytes (16 MiB), "
            f"but got memory_limit={memory_limit!r}"
        )
    return size
