"""Random numbers for the user's functions, drawn by the sample that they are called for.

The key is (seed, epoch, operator, place of the sample): nothing in it depends on who makes the call or
when. So the same sample gets the same numbers in any process, on any thread, and when it is made again
after a resume. What it costs a function that draws nothing is one ``ContextVar.set`` for each block.
"""

from __future__ import annotations

from collections.abc import Sized
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from ..blocks import Trail
from .heard import Heard
from .op import Lane

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Calls", "sample_rng", "sample_seed"]

# Words of the key are not negative; of a seed that is, its two's complement.
_WORD = 0xFFFF_FFFF_FFFF_FFFF


class Calls(Heard):
    """Calls of the user's function for the samples of a block, one after another; used with ``with``.

    Args:
        lane: As the operator was given it.
        trail: The block's.
        done: What grows by one with each call that has returned; its length is the index of the sample in
            hand, which so need not be told for each.
    """

    __slots__ = ("_done", "_lane", "_rng", "_rng_index", "_token", "_trail")

    def __init__(self, lane: Lane, trail: Trail, done: Sized) -> None:
        self._lane = lane
        self._trail = trail
        self._done = done
        self._rng: np.random.Generator | None = None
        self._rng_index = 0

    def __enter__(self) -> None:
        self._token: Token[Calls | None] = _here.set(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _here.reset(self._token)
        super().__exit__(kind, error, traceback)

    def rng(self) -> np.random.Generator:
        """The generator of the sample in hand."""
        index = len(self._done)
        if self._rng is None or self._rng_index != index:
            self._rng = _open_rng(self._lane, self._trail, index)
            self._rng_index = index
        return self._rng


_here: ContextVar[Calls | None] = ContextVar("asyncloader-calls", default=None)


def sample_rng() -> np.random.Generator:
    """The random generator of the sample that a function of the recipe is called for.

    It is keyed by (the seed of the recipe's first ``.shuffle``, or 0 without one; the epoch; the operator;
    the shard and the sample's index in it, in a ``.repeat`` also the repetition). So a sample is augmented
    alike whatever the number of workers, threads or coroutines and however the samples are shuffled, and
    again after a resume; in the next epoch and repetition it is augmented otherwise. In a mixture the key has
    also which component it is; within one the seed is that of its own first ``.shuffle``. Samples of
    ``from_iterable`` are keyed by lane and index in it: there the number of lanes matters. Functions of
    ``.map_batches`` and ``.filter_batches`` get that of the first sample of their chunk; which samples those
    are goes by the number of lanes too.

    Returns:
        A ``numpy.random.Generator``, the same one when asked again for the same sample, so that helpers
        which ask for it themselves draw on and not the same numbers again. NumPy keeps its streams from
        release to release, but not always what its methods make of them.

    Raises:
        RuntimeError: Called by something else, such as a ``collate_fn``, a thread that the function has
            started, or a dataset of torch's kinds.
    """
    calls = _here.get()
    if calls is None:
        raise RuntimeError(
            "sample_rng() and sample_seed() are for the functions given to .map, .filter, .map_batches and "
            ".filter_batches of a recipe, while a loader calls them; elsewhere there is no sample to draw "
            "for. To try such a function out, run it in a recipe: from_iterable([sample]).map(fn).head(1)"
        )
    return calls.rng()


def sample_seed() -> int:
    """A seed drawn from ``sample_rng``, for generators of other libraries.

    Such as ``random.Random(al.sample_seed())`` or ``torch.Generator().manual_seed(al.sample_seed())``.

    Returns:
        An int of 0 up to 2**63 - 1; another one at each call.

    Raises:
        RuntimeError: As ``sample_rng``.
    """
    return int(sample_rng().integers(1 << 63))


def _open_rng(lane: Lane, trail: Trail, index: int) -> np.random.Generator:
    import numpy as np

    place = trail.place(index)
    # In a mixture also which component, and whether that calls the function or somebody behind it.
    mixed = (*place.component, len(lane.component)) if place.component else ()
    key = (
        (lane.order_seed or 0) & _WORD,
        lane.topology.epoch,
        lane.operator,
        place.repetition,
        place.number,
        place.sample,
        *mixed,
    )
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
