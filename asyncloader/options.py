"""The checks of the loader's parameters, in torch's order and in torch's words where they overlap."""

from __future__ import annotations

from typing import Any

from .batching import check_batch_size

__all__ = ["check_ours", "check_streaming", "check_workers"]

# A lane must be able to hold a first part and the block decoded from it, whatever the user says.
_LEAST_MEMORY = 16 << 20


def check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> int | None:
    """Check what has to do with workers, and give the prefetch factor with its default filled in.

    Raises:
        ValueError: As torch's DataLoader.
    """
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if num_workers > 0 and prefetch_factor is None:
        prefetch_factor = 2
    elif prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")
    return prefetch_factor


def check_streaming(
    shuffle: Any, sampler: Any, batch_sampler: Any, batch_size: int | None, drop_last: bool
) -> None:
    """Check what a streaming recipe does not take, as torch does for an ``IterableDataset``.

    Raises:
        ValueError: As torch's DataLoader; shuffling is a matter of the recipe.
    """
    for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is None or (name == "shuffle" and value is False):
            continue
        advice = "; use .shuffle(window, seed=...) on the dataset" if name == "shuffle" else ""
        raise ValueError(
            f"DataLoader with IterableDataset: expected unspecified {name} option, "
            f"but got {name}={value}{advice}"
        )
    check_batch_size(batch_size, drop_last)


def check_ours(multiprocessing_context: Any, collate_fn: Any, worker_init_fn: Any, memory_limit: int) -> None:
    """Check the rest.

    Raises:
        TypeError: A function that cannot be called.
        ValueError: A start method for streaming workers, or too small a memory limit.
    """
    if multiprocessing_context is not None:
        raise ValueError(
            "multiprocessing_context cannot be chosen for streaming datasets, but got "
            f"multiprocessing_context={multiprocessing_context!r}: their workers always come from a clean "
            "process that never runs the main module"
        )
    for name, fn in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if fn is not None and not callable(fn):
            raise TypeError(f"{name} should be callable, but got {type(fn).__name__}")
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < _LEAST_MEMORY:
        raise ValueError(
            f"memory_limit should be at least {_LEAST_MEMORY} bytes (16 MiB), "
            f"but got memory_limit={memory_limit!r}"
        )
