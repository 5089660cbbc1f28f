"""Calls of the user's functions: their errors, random numbers and contexts, and how many at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar, Token
from threading import Lock, get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ..blocks import Block, Trail, bytes_of
from ..flow.engine import MakeContext
from .lane import Lane
from .op import name_of, note_sample
from .skips import Applied

if TYPE_CHECKING:
    import numpy as np
    import torch

# --- errors ---

_ENDINGS = (StopIteration, StopAsyncIteration, SystemExit)


class UserCodeErrors:
    """A context manager for calls of the user's function.

    Raises:
        RuntimeError: The function raised ``StopIteration``, ``StopAsyncIteration`` or ``SystemExit``. The
            first two would end the next loop outside, so that later samples of the lane would be lost. An
            exit in a thread or a worker would end only that; as an error it names the sample.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, _ENDINGS):
            raise as_error(error) from error


async def call_user_code(fn: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """``await fn(*given)``, in a task of the library.

    Raises:
        RuntimeError: It raised something that is no ``Exception``. If something that the function waits for
            is cancelled, the ``CancelledError`` would silently end this task, which was not cancelled itself.
            An exit would end the loop under all other tasks.
    """
    try:
        return await fn(*given)
    except Exception:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # this task itself is cancelled
        raise as_error(error) from error


def as_error(ending: BaseException) -> RuntimeError:
    """The error that replaces ``StopIteration``, an exit and the like."""
    text = f"{type(ending).__name__}: {ending}" if str(ending) else type(ending).__name__
    # With the frames of the function, which messages from workers show too.
    return RuntimeError(f"the function raised {text}").with_traceback(ending.__traceback__)


# --- random numbers ---

Library: TypeAlias = Literal["numpy", "torch", "random"]

# Words of a key are not negative; a negative seed becomes its two's complement.
_WORD = 0xFFFF_FFFF_FFFF_FFFF


class UserCalls(UserCodeErrors):
    """A context manager for calls of the user's function for the samples of a block, one after another.

    Random numbers are keyed by (seed, epoch, operator, place of the sample): nothing in the key depends on
    where or when the call is made. So a sample gets the same numbers in any process, on any thread, and again
    after a resume. A function that draws nothing costs one ``ContextVar.set`` a block.

    Args:
        lane: As the operator was given it.
        trail: The block's.
        done: Has as many items as the current sample's index is; grows with each call that has ended.
    """

    __slots__ = ("_done", "_lane", "_rng_index", "_rngs", "_token", "_trail")

    def __init__(self, lane: Lane, trail: Trail, done: Sized = ()) -> None:
        self._lane = lane
        self._trail = trail
        self._done = done
        self._rngs: dict[Library, Any] | None = None
        self._rng_index = 0

    def __enter__(self) -> None:
        self._token: Token[UserCalls | None] = _current.set(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _current.reset(self._token)
        super().__exit__(kind, error, traceback)

    @property
    def index(self) -> int:
        """The index of the current sample in the block."""
        return len(self._done)

    def rng(self, library: Library) -> Any:
        """The generator of one of the libraries, for the current sample."""
        index = self.index
        if self._rngs is None or self._rng_index != index:
            self._rngs, self._rng_index = {}, index
        if library not in self._rngs:
            self._rngs[library] = _open_generator(library, self.key())
        return self._rngs[library]

    def key(self) -> tuple[int, ...]:
        """The key of the draws for the current sample."""
        lane, place = self._lane, self._trail.place(self.index)
        # In a mixture also which component, and whether its own operator calls the function or one after it.
        mixed = (*place.component, len(lane.component)) if place.component else ()
        return (
            (lane.order_seed or 0) & _WORD,
            lane.topology.epoch,
            lane.stage - 1,  # the number of the operator
            place.repetition,
            place.number,
            place.sample,
            *mixed,
        )


def call_each(
    fn: Callable[[Any], Any], lane: Lane, what: str, block: Block, *, decides: bool = False
) -> Applied:
    """Call ``fn`` for every sample: up to the first that fails, or after it too if errors are skipped.

    Args:
        fn: The user's.
        lane: As the operator was given it.
        what: The operator, for messages.
        block: The samples.
        decides: Whether only the truth of its results is of use, which may be an error too.
    """
    lane.services.engine.check()  # a closed pass does not make the next call
    began_s = perf_counter()
    results: list[Any] = []
    failed: dict[int, Exception] = {}
    calls, samples = UserCalls(lane, block.trail, results), iter(block.rows())
    while True:
        try:
            with calls:
                if decides:
                    for sample in samples:
                        results.append(True if fn(sample) else False)  # noqa: SIM210  # half of bool()'s time
                else:
                    for sample in samples:
                        results.append(fn(sample))
            return Applied(block, results, failed, None, perf_counter() - began_s)
        except Exception as error:
            if is_raised(error, lane):
                note_sample(error, what, block, calls.index)
                return Applied(block, results, failed, error, perf_counter() - began_s)
            failed[calls.index] = error
            results.append(None)


def is_raised(error: Exception, lane: Lane) -> bool:
    """Whether an error of the user's function is raised and not skipped."""
    return lane.skips is None or isinstance(error, MemoryError)  # which is not the sample's fault


_current: ContextVar[UserCalls | None] = ContextVar("asyncloader-calls", default=None)

# The global generators are seeded by one thread at a time; this is the current one.
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
    """Return the random generator of the current sample, for use in a function of the dataset.

    A sample gets the same numbers for any number of workers, threads or coroutines, in any order, and again
    after a resume; each epoch and each repetition of ``.repeat`` gives it other ones. The generator is seeded
    by these: the seed of the dataset's first ``.shuffle`` (0 without one), the epoch, the operator, the
    shard, the sample's index in it, and the repetition. In a mixture, the component is added, and the seed is
    that of the component's first ``.shuffle``.

    In two cases the numbers also depend on the number of lanes. Samples of ``from_iterable`` have a lane and
    an index in it instead of a shard. Functions of ``.map_batches`` and ``.filter_batches`` get the generator
    of the first sample in their chunk.

    Example:
        ```python
        import asyncloader as al

        dataset = al.from_iterable(range(100)).map(lambda number: number + al.sample_rng().normal())
        assert dataset.head(3) == dataset.head(3)
        ```

    Args:
        library: The kind of generator: ``"numpy"``, ``"torch"`` (on the CPU) or ``"random"``. Each has
            numbers of its own.

    Returns:
        A ``numpy.random.Generator``, a ``torch.Generator`` or a ``random.Random``. Further calls for the same
        sample return the same object, so functions that call each other draw further numbers. NumPy may
        change the results of its methods in a new release.

    Raises:
        RuntimeError: No function of a dataset is being called here: for example in a ``collate_fn``, on a
            thread that the function has started, or in a map-style dataset.
        ValueError: ``library`` is unknown.
    """
    if library not in ("numpy", "torch", "random"):
        raise ValueError(f"library should be 'numpy', 'torch' or 'random', but got library={library!r}")
    return _calls().rng(library)  # type: ignore[no-any-return]  # a generator of the library that is named


@contextmanager
def sample_seeded() -> Iterator[None]:
    """Seed the global generators of NumPy, torch and ``random`` for the current sample, in a ``with`` block.

    Use it for code that draws from these generators, such as the transforms of torchvision. Their numbers
    then depend on the same things as those of ``sample_rng``. The end of the block restores the generators.

    The generators belong to the whole process, so only one thread at a time can enter the block. Other
    threads, such as a training loop without workers, meanwhile draw from the same generators. Use workers
    therefore, and leave ``concurrency`` at 1. A coroutine function must not ``await`` in the block.

    Yields:
        None.

    Raises:
        RuntimeError: As for ``sample_rng``; or the block is inside another one, or two coroutines are in it.
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


def _calls() -> UserCalls:
    calls = _current.get()
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


# --- contexts ---


def with_context(fn: Callable[..., Any], context: MakeContext | None, lane: Lane) -> Callable[[Any], Any]:
    """``fn`` as a function of the sample alone: its second argument is the value of ``context``.

    Operators and lanes of one process that have the same ``context`` share its value.
    """
    if context is None:
        return fn
    key = id(context)  # it may not be hashable; the dataset keeps it alive
    if key not in lane.services.clients:
        lane.services.clients[key] = lane.services.engine.enter(context)
    value = lane.services.clients[key]

    def call(sample: Any) -> Any:
        return fn(sample, value)

    call.__qualname__ = name_of(fn)
    return call


# --- how many samples at a time ---

PIECE_SAMPLES = 32
"""How many samples an operator that runs the user's code takes at a time.

Few enough that the first is passed on before a whole block of decoded images is made; enough that the cost
of a block (some 2 us) does not matter.
"""

# What is being made should fit into the processor's caches, even if the memory may hold more.
_MOST_BYTES = 8 << 20

# Samples of each piece whose size is measured, which takes some microseconds.
_MEASURED = 4

# A piece of brief calls may have more samples: as many as take this long.
_BRIEF_S = 0.001
_MOST_OF_BRIEF = 8

# A piece of slow calls has fewer samples, since a closed pass is noticed only between pieces.
_LONG_S = 0.1


def next_size(size: int, most: int, in_a_second: float) -> int:
    """How many samples the next piece has: at most twice as many, and fewer if calls are slow.

    Args:
        size: Samples of the last piece.
        most: Most samples of a piece; for brief calls eight times as many.
        in_a_second: Calls per second.
    """
    brief = min(_MOST_OF_BRIEF * most, int(_BRIEF_S * in_a_second))
    return max(1, min(max(most, brief), 2 * size, int(_LONG_S * in_a_second)))


def cut(block: Block, most: Callable[[], int]) -> Iterator[Block]:
    """The block in pieces; ``most()`` is called for each, and limits its samples."""
    start = 0
    while start < len(block):
        stop = min(start + most(), len(block))
        yield block if stop - start == len(block) else block.part(start, stop)
        start = stop


class AdaptiveSize:
    """How many samples an operator takes at a time: fewer if the samples that it has made are large.

    The first piece is one sample, since the size of what a function makes is not known before. Each next
    piece has at most twice the samples of the one before.

    Args:
        most: Most samples of a piece; for brief calls eight times as many.
        made_bytes: Bound on what is made and not yet passed on, in one piece or many.
    """

    def __init__(self, most: int, made_bytes: int) -> None:
        self._most = most
        self._made_bytes = made_bytes
        self._samples = 1
        # The size of the first ones is unknown: only as many of them as run at a time.
        self._sample_bytes = made_bytes + 1
        self._measured = False

    def samples(self) -> int:
        """Samples of the next piece."""
        return self._samples

    def measure(self, made: list[Any], took_s: float | None = None) -> None:
        """Adapt to the samples made of a piece, and to the time that this took, if it is known."""
        if not made:
            return
        seen = made[:: -(-len(made) // _MEASURED)]
        sample_bytes = bytes_of(seen) // len(seen)
        if self._measured:  # a large one counts for a while, so that the size does not oscillate
            sample_bytes = max(sample_bytes, self._sample_bytes * 7 // 8)
        self._measured, self._sample_bytes = True, sample_bytes
        fit = min(self._made_bytes, _MOST_BYTES) // max(self._sample_bytes, 1)
        if took_s is None:
            size = min(2 * self._samples, self._most)
        else:
            size = next_size(self._samples, self._most, len(made) / max(took_s, 1e-9))
        self._samples = max(1, min(fit, size))

    def may_hold(self, samples: int) -> bool:
        """Whether so many samples may be made and not yet passed on, in all pieces together."""
        return samples * self._sample_bytes <= self._made_bytes
