"""What an operator is, its name in messages, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from itertools import groupby
from typing import Any, Protocol

from ..blocks import Block, Place, Trail
from ..errors import add_note
from ..plan.lanes import Counter, Deal
from ..types import Position
from .lane import Blocks, Lane, Opener

# How many samples of a batch a message names.
_MOST_PLACES = 16


class Source(Protocol):
    """Where a dataset's samples come from."""

    @property
    def stage(self) -> str:
        """Its name in reports of time: what it does when it does not wait."""
        ...

    @property
    def most_lanes(self) -> int | None:
        """How many lanes can have something: as many as there are shards, or samples if lanes are cut inside
        of shards; None if it does not come in shards."""
        ...

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The lane's samples from ``start`` on."""
        ...

    def count_samples(self, deal: Deal) -> list[float]:
        """How many samples each lane of ``deal`` has; raises ``UnknownCount`` with the reason."""
        ...

    def places_at(self, entry: Mapping[str, Any], deal: Deal) -> list[Place]:
        """The samples at which the one lane of ``deal`` continues: with several components, one of each.

        Args:
            entry: What the source has noted in the position.
            deal: The lane.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """What must be equal for a saved state to fit, as JSON values, without secrets."""
        ...


class Op(Protocol):
    """A transformation of one lane's stream; the base class of those that make one sample of each."""

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        """The transformed samples from ``start`` on; closing the generator closes the upstream."""
        ...

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        """How many samples each lane has after it, by default as many as before; see ``Source``."""
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        """What must be equal for a saved state to fit, as JSON values."""
        ...


def shown(op: Op) -> str:
    """An operator's name in messages, audits and reports: with its function, or its count."""
    described = op.describe()
    return f"{described['op']}({described.get('fn', described.get('count', ''))})"


def call_of(op: Op) -> str:
    """An operator as it was called, with its function by name."""
    described = dict(op.describe())
    name = described.pop("op")
    parameters = [str(described.pop("fn"))] if "fn" in described else []
    parameters += [f"{parameter}={value!r}" for parameter, value in described.items()]
    return f"{name}({', '.join(parameters)})"


def name_of(fn: Callable[..., Any]) -> str:
    """A function's name in states and messages."""
    fn = getattr(fn, "func", fn)  # functools.partial
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def note_sample(error: BaseException, what: str, block: Block, index: int) -> None:
    """Add a note to ``error`` that names the sample which the user's function was called for."""
    (sample,), place = block.part(index, index + 1).rows(), block.trail.place(index)
    if isinstance(sample, Mapping):
        key = f", __key__ {sample['__key__']!r}" if "__key__" in sample else ""
        fields = ", ".join(sorted(str(name) for name in sample if not str(name).startswith("__")))
        add_note(error, f"in {what} of {place}{key} (fields: {fields})")
    else:
        add_note(error, f"in {what} of {place}, of type {type(sample).__name__}")


def note_batch(error: BaseException, what: str, trail: Trail, count: int) -> None:
    """Add a note to ``error`` that names the samples of a batch, the first ones if they are many."""
    places = [trail.place(index) for index in range(min(count, _MOST_PLACES))]
    if count == 1:
        add_note(error, f"in {what} of {places[0]}")
        return
    named = []
    for shard, group in groupby(places, lambda place: place.shard):
        numbers = ", ".join(str(place.sample) for place in group)
        named.append(f"samples {numbers}" + ("" if shard is None else f" of {shard}"))
    if count > len(places):
        named.append(f"and {count - len(places)} more")
    add_note(error, f"in {what} of {count} samples: {'; '.join(named)}")


# --- checks of arguments, when an operator is made ---


def is_async(fn: object) -> bool:
    """Whether calling it returns a coroutine."""
    target = fn.func if isinstance(fn, partial) else fn
    return iscoroutinefunction(target) or iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004  # the method itself is asked for


def check_map(fn: object, context: object) -> None:
    """Check the arguments of ``.map``."""
    _check_callable("map", fn, "one sample")
    # A context manager may be callable too: contextlib's are decorators as well.
    made = hasattr(context, "__aenter__") and not isinstance(context, type)
    if context is not None and (made or not callable(context)):
        raise TypeError(
            "context should be a function that makes an asynchronous context manager in each process, "
            f"such as the class itself, but got a {type(context).__name__}"
        )


def check_plain(op: str, fn: object, of: str, hint: str = "") -> None:
    """Check that ``fn`` is a plain function; ``of`` and ``hint`` are for messages."""
    _check_callable(op, fn, of)
    if is_async(fn):
        raise TypeError(f"{op} should get a plain function, but got a coroutine function{hint}")


def check_names(op: str, names: Iterable[object]) -> None:
    """Check that they are names of fields."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{op} should get field names, but got {type(name).__name__}: {name!r}")


def _check_callable(op: str, fn: object, of: str) -> None:
    if not callable(fn):
        advice = "; pass the async def function without calling it" if iscoroutine(fn) else ""
        raise TypeError(f"{op} should get a function of {of}, but got {type(fn).__name__}{advice}")
