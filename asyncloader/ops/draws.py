"""Random numbers for the user's functions, drawn by the sample that they are called for.

The key is (seed, epoch, operator, place of the sample): nothing in it depends on who makes the call or
when. So the same sample gets the same numbers in any process, on any thread, and when it is made again
after a resume. What it costs a function that draws nothing is one ``ContextVar.set`` for each block.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar, Token
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ..blocks import Trail
from .heard import Heard
from .op import Lane

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["SampleCalls", "sample_rng", "sample_seeded"]

Library: TypeAlias = Literal["numpy", "torch", "random"]

# Words of the key are not negative; of a seed that is, its two's complement.
_WORD = 0xFFFF_FFFF_FFFF_FFFF


class SampleCalls(Heard):
    """Calls of the user's function for the samples of a block, one after another; used with ``with``.

    Args:
        lane: As the operator was given it.
        trail: The block's.
        done: What grows by one with each call that has returned; its length is the index of the sample in
            hand, which so need not be told for each.
    """

    __slots__ = ("_done", "_lane", "_rng_index", "_rngs", "_token", "_trail")

    def __init__(self, lane: Lane, trail: Trail, done: Sized) -> None:
        self._lane = lane
        self._trail = trail
        self._done = done
        self._rngs: dict[Library, Any] | None = None
        self._rng_index = 0

    def __enter__(self) -> None:
        self._token: Token[SampleCalls | None] = _here.set(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _here.reset(self._token)
        super().__exit__(kind, error, traceback)

    def rng(self, library: Library) -> Any:
        """The generator of the sample in hand, of one of the libraries."""
        index = len(self._done)
        if self._rngs is None or self._rng_index != index:
            self._rngs, self._rng_index = {}, index
        if library not in self._rngs:
            self._rngs[library] = _open_generator(library, self.key())
        return self._rngs[library]

    def key(self) -> tuple[int, ...]:
        """What the draws for the sample in hand are keyed by."""
        return _key_of(self._lane, self._trail, len(self._done))


_here: ContextVar[SampleCalls | None] = ContextVar("asyncloader-calls", default=None)

# The global generators are seeded by one thread at a time, and by this one.
_seeding = Lock()
_seeding_thread: int | None = None


@overload
def sample_rng() -> np.random.Generator: ...
@overload
def sample_rng(library: Literal["numpy"]) -> np.random.Generator: ...
@overload
def sample_rng(library: Literal["torch"]) -> torch.Generator: ...
@overload
def sample_rng(library: Literal["random"]) -> random.Random: ...


def sample_rng(library: Library = "numpy") -> np.random.Generator | torch.Generator | random.Random:
    """The random generator of the sample that a function of the dataset is called for.

    It is keyed by (the seed of the dataset's first ``.shuffle``, or 0 without one; the epoch; the operator;
    the shard and the sample's index in it, in a ``.repeat`` also the repetition). So a sample is augmented
    alike whatever the number of workers, threads or coroutines and however the samples are shuffled, and
    again after a resume; in the next epoch and repetition it is augmented otherwise. In a mixture the key has
    also which component it is; within one the seed is that of its own first ``.shuffle``. Samples of
    ``from_iterable`` are keyed by lane and index in it: there the number of lanes matters. Functions of
    ``.map_batches`` and ``.filter_batches`` get that of the first sample of their chunk; which samples those
    are goes by the number of lanes too.

    Args:
        library: Whose generator: ``"numpy"``, ``"torch"`` (of the CPU) or ``"random"``. Each draws numbers
            of its own.

    Returns:
        A ``numpy.random.Generator``, a ``torch.Generator`` or a ``random.Random``; the same one when called
        again for the same sample, so that functions which call it themselves draw further numbers. NumPy
        keeps its streams from release to release, but not always what its methods make of them.

    Raises:
        RuntimeError: Called by something else, such as a ``collate_fn``, a thread that the function has
            started, or a dataset of torch's kinds.
        ValueError: Another library is named.
    """
    if library not in ("numpy", "torch", "random"):
        raise ValueError(f"library should be 'numpy', 'torch' or 'random', but got library={library!r}")
    return _calls().rng(library)  # type: ignore[no-any-return]  # a generator of the library that is named


@contextmanager
def sample_seeded() -> Iterator[None]:
    """Seed the global generators of NumPy, torch and ``random`` for the sample, within a ``with`` block.

    For functions that draw from these, such as the transforms of torchvision: they then draw by the key of
    ``sample_rng``. When the block is left, the generators are as they were before.

    The generators are those of the whole process. One thread at a time is in such a block; what other
    threads draw meanwhile, a training loop's without workers among them, comes from the same numbers. So
    give the loader workers, and leave ``concurrency`` at 1. A coroutine function must not ``await`` in it.

    Raises:
        RuntimeError: As ``sample_rng``; or the block is entered within another one, or by two coroutines at
            a time.
    """
    global _seeding_thread
    import numpy as np
    import torch

    seed = int(np.random.SeedSequence(_calls().key(), spawn_key=(3,)).generate_state(1, np.uint64)[0] >> 1)
    if _seeding_thread == get_ident():
        raise RuntimeError(
            "sample_seeded() is entered within another such block, or by two coroutines at a time; leave the "
            "block before the next one and before an await, or draw from sample_rng(library=...)"
        )
    with _seeding:
        _seeding_thread = get_ident()
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            random.seed(seed)
            np.random.seed(np.random.SeedSequence(seed).generate_state(4))
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])
            _seeding_thread = None


def _calls() -> SampleCalls:
    calls = _here.get()
    if calls is None:
        raise RuntimeError(
            "sample_rng() and sample_seeded() are for the functions given to .map, .filter, .map_batches and "
            ".filter_batches of a dataset, while a loader calls them; elsewhere there is no sample to draw "
            "for. To try such a function out, run it in a dataset: from_iterable([sample]).map(fn).head(1)"
        )
    return calls


def _open_generator(library: Library, key: tuple[int, ...]) -> Any:
    import numpy as np

    if library == "numpy":
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
    spawn_key = (1,) if library == "torch" else (2,)
    seed = int(np.random.SeedSequence(key, spawn_key=spawn_key).generate_state(1, np.uint64)[0] >> 1)
    if library == "random":
        return random.Random(seed)
    import torch

    return torch.Generator().manual_seed(seed)


def _key_of(lane: Lane, trail: Trail, index: int) -> tuple[int, ...]:
    place = trail.place(index)
    # In a mixture also which component, and whether that calls the function or somebody behind it.
    mixed = (*place.component, len(lane.component)) if place.component else ()
    return (
        (lane.order_seed or 0) & _WORD,
        lane.topology.epoch,
        lane.operator,
        place.repetition,
        place.number,
        place.sample,
        *mixed,
    )
