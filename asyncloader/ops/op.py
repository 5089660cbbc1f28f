"""What an operator is, and what it is given to run in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .._flow.engine import Engine
from ..plan.topology import Topology
from ..progress import NetworkCounts
from ..types import Block, PickedTrail, Position

if TYPE_CHECKING:
    from .take import Shortfall

__all__ = [
    "PIECE_SAMPLES",
    "START",
    "Blocks",
    "Lane",
    "Op",
    "Opener",
    "Source",
    "Want",
    "name_of",
    "note_sample",
]

START: Position = {}
"""The position before the first sample."""

PIECE_SAMPLES = 32
"""How many samples an operator that runs the user's code takes at a time.

Few enough that the first of them is handed on before a whole block of decoded images is made; enough
that what a block costs (some 2 us) is lost among them.
"""


class Want:
    """How many samples whoever pulls a lane's stream has a use for; without bound in most passes.

    Operators that call the user's functions hold themselves to it: what is begun and not yet handed on is
    never more, and always at least one while somebody pulls, so that a filter behind them starves nobody.

    Attributes:
        samples: The number, set anew before each pull.
    """

    def __init__(self) -> None:
        self.samples = sys.maxsize

    def pull(self, blocks: Iterator[Block], wanted: Callable[[], int]) -> Iterator[Block]:
        """The blocks, each pulled with ``wanted()`` as the want."""
        while True:
            mine, self.samples = self.samples, max(wanted(), 1)
            try:
                block = next(blocks, None)
            finally:
                self.samples = mine
            if block is None:
                return
            yield block

    def pieces(self, block: Block, most: int, wanted: Callable[[], int] | None = None) -> Iterator[Block]:
        """The block in blocks of at most ``most`` samples and at most ``wanted()``, the want by default."""
        start = 0
        while start < len(block):
            room = self.samples if wanted is None else wanted()
            stop = min(start + min(most, max(room, 1)), len(block))
            if stop - start == len(block):
                yield block
            else:
                yield Block(block.samples[start:stop], PickedTrail(block.trail, range(start, stop)))
            start = stop


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one pass, as sources and operators see it.

    Attributes:
        topology: Which lane of how many, and the epoch.
        engine: Where I/O and the user's coroutines run.
        read_bytes: Bound on what the lane's source has requested and not yet handed on.
        order_seed: Seed that draws the order of shards, None for the order given.
        repetition: Which repetition of the data within the epoch this is, from 0.
        network: Counts the requests of this process.
        shared: Clients shared by the lanes of one engine, made by the source that needs them.
        operator: Which of the recipe's operators is being opened, from 0.
        want: What the stream is pulled for.
        shortfalls: Told of each ``take`` that could not be kept.
    """

    topology: Topology
    engine: Engine
    read_bytes: int
    order_seed: int | None = None
    repetition: int = 0
    network: NetworkCounts = field(default_factory=NetworkCounts, compare=False)
    shared: dict[Any, Any] = field(default_factory=dict, compare=False)
    operator: int = 0
    want: Want = field(default_factory=Want, compare=False)
    shortfalls: list[Shortfall] = field(default_factory=list, compare=False)

    def repeated(self, repetition: int) -> Lane:
        """This lane in another repetition; shuffles draw anew in each."""
        return replace(self, repetition=repetition)

    def draw_key(self, seed: int) -> tuple[int, int, int]:
        """What seeds a draw for all lanes alike."""
        return seed, self.topology.epoch, self.repetition


Blocks: TypeAlias = Generator[Block, None, None]
"""A running stream. It holds threads, requests and files: whoever opened it closes it."""

Opener: TypeAlias = Callable[[Position, Lane], Blocks]


class Source(Protocol):
    """Where a recipe's samples come from."""

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The lane's samples from ``start`` on."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What makes two sources the same to a saved state, as JSON values, without secrets."""
        ...


class Op(Protocol):
    """A transformation of one lane's stream."""

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        """The transformed samples from ``start`` on; closing the generator closes the upstream."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What makes two operators the same to a saved state, as JSON values."""
        ...


def name_of(fn: Callable[..., Any]) -> str:
    """A function's name as shown in states and messages."""
    fn = getattr(fn, "func", fn)  # functools.partial
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def note_sample(error: BaseException, what: str, sample: Any) -> None:
    """Say at ``error`` which sample the user's function was given."""
    if isinstance(sample, Mapping):
        places = ", ".join(f"{name} {sample[name]!r}" for name in ("__key__", "__url__") if name in sample)
        fields = ", ".join(sorted(str(name) for name in sample if not str(name).startswith("__")))
        error.add_note(f"in {what} of the sample with {places or 'no key'} (fields: {fields})")
    else:
        error.add_note(f"in {what} of a sample of type {type(sample).__name__}")
