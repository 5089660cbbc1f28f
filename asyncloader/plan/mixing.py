"""Which component of a mixture each sample of a lane is taken from. Pure.

A *draw* takes the next sample of one component. A *leg* is a run of draws among the same components: where
one runs dry and the others go on, a new leg begins. The component of draw ``n`` of a leg is a function of
(weights, seed, epoch, lane, which components ran dry before, n), and is computed without the draws before.

The schedule is a tree over the components. Of the ``m`` draws that have come to a node, ``floor(p m + u)``
went to its left child: a Beatty sequence, which is Bresenham's line ("Algorithm for computer control of a
digital plotter", 1965), so the one child's draws lie among the other's as evenly as possible. The tree is
Huffman's ("A method for the construction of minimum-redundancy codes", 1952), which keeps the heavy
components near the root, where nothing adds up. The phase ``u`` is drawn by the key, so that lanes do not all
take from a rare component at the same time, out of the phases for which no component is a whole sample off.

So after any number of draws each of up to four components is within one sample of its weight's part, which is
the best possible (Tijdeman, "The chairman assignment problem", 1980), and each of any number within two.
Independent draws would be off by ``sqrt(n)``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Real
from operator import add
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..quantity import as_whole
from .lanes import draw_words

Stop: TypeAlias = Literal["first", "all", "repeat"]

# Shares and phases are multiples of this fraction, so that every machine computes the same. The share of a
# rare component is off by less than a sample in 10 ** 14.
_BITS = 48
_ONE = 1 << _BITS

# Draws computed at a time: many, so that the cost of a call (some 20 us a component) does not matter. At most
# 2 ** 15, so that a share times their number stays below 2 ** 63.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class _Node:
    """Draws divided among two.

    Attributes:
        share: The left child's part of the draws.
        phase: How much of the left child's next draw was due before the first one.
        left, right: Each the number of a component, or a node.
    """

    share: int
    phase: int
    left: _Node | int
    right: _Node | int


_Tree: TypeAlias = _Node | int


class Schedule:
    """The draws of one leg.

    Args:
        weights: Of each component, 0 or more; their sum is above 0. One of 0 is never drawn.
        key: Integers that name the draw of the phases.
    """

    def __init__(self, weights: Sequence[float], key: Sequence[int]) -> None:
        total = math.fsum(weights)
        parts = [max(1, round(weight / total * _ONE)) if weight else 0 for weight in weights]
        self._count = len(parts)
        words = iter(draw_words(len(parts), *key).tolist())
        self._tree = _with_phases(_huffman(parts), words)

    def draws(self, first: int, count: int) -> NDArray[np.int64]:
        """The components of ``count`` draws, at most 2 ** 15, from draw ``first`` on: ``(count,)``."""
        return _drawn(self._tree, first, count)

    def counts(self, draws: int) -> list[int]:
        """How many of the first ``draws`` are of each component."""
        counts = [0] * self._count
        open_nodes = [(self._tree, draws)]
        while open_nodes:
            tree, had = open_nodes.pop()
            if isinstance(tree, int):
                counts[tree] = had
            else:
                left = tree.share * had + tree.phase >> _BITS
                open_nodes += [(tree.left, left), (tree.right, had - left)]
        return counts

    def find(self, component: int, nth: float) -> float:
        """The draw that takes sample ``nth`` of a component, from 0; infinite for an infinite ``nth``."""
        if math.isinf(nth):
            return math.inf
        found = _find(self._tree, component, int(nth))
        assert found is not None, f"component {component} has no weight"
        return found


class Draws:
    """The draws of a leg, in order, as far as there are samples for them.

    Args:
        weights, key: See ``Schedule``.
        drawn: How many draws of the leg were made before.
    """

    def __init__(self, weights: Sequence[float], key: Sequence[int], drawn: int) -> None:
        self._schedule = Schedule(weights, key)
        self._components = len(weights)
        self.drawn = drawn
        self._ahead = np.zeros(0, np.int64)
        self._done = 0
        #: Of each component its draws among those ahead, and how many of them are made.
        self._places: list[NDArray[np.int64]] = []
        self._used: list[int] = []
        self._work_out()

    @property
    def due(self) -> int:
        """The component of the next draw."""
        return int(self._ahead[self._done])

    def take(self, held: Sequence[int]) -> tuple[NDArray[np.int64], list[int]]:
        """Make all draws, some hundred at most, up to one whose component has no sample left.

        Args:
            held: How many samples there are of each component.

        Returns:
            The component of each draw that was made, ``(n,)``, which may be none; and how many are of each.
        """
        stop = _AT_ONCE
        for places, used, count in zip(self._places, self._used, held, strict=True):
            if used + count < len(places):
                stop = min(stop, int(places[used + count]))
        made = self._ahead[self._done : stop]
        counts: list[int] = np.bincount(made, minlength=len(held)).tolist()
        self.drawn += len(made)
        self._done = stop
        if stop == _AT_ONCE:
            self._work_out()
        else:
            self._used = list(map(add, self._used, counts))
        return made, counts

    def _work_out(self) -> None:
        self._ahead = self._schedule.draws(self.drawn, _AT_ONCE)
        self._done = 0
        order = np.argsort(self._ahead, kind="stable")
        edges = np.searchsorted(self._ahead[order], np.arange(1, self._components))
        self._places = np.split(order, edges)
        self._used = [0] * self._components


def goes_on_without(gone: int, live: Iterable[int], endless: Sequence[bool], stop: Stop) -> bool:
    """Whether a lane in which a component has run dry, or has no samples, goes on with those that are left.

    It needs at least one. And where the first dry component ends it, endless ones alone do not count: a lane
    without samples of the finite component would never end.

    Args:
        gone: The component.
        live: Those that are left.
        endless: Which components never end.
        stop: When the lane ends.
    """
    left = list(live)
    is_cut = stop == "first" and not endless[gone] and all(endless[number] for number in left)
    return bool(left) and not is_cut


def mixed_count(
    weights: Sequence[float],
    key: Sequence[int],
    counts: Sequence[float],
    endless: Sequence[bool],
    stop: Stop,
) -> float:
    """How many samples a lane of a mixture has.

    Args:
        weights, key: See ``Schedule``.
        counts: Samples of each component in the lane; infinite for one that never ends there.
        endless: Which components never end.
        stop: When it ends.
    """
    live = [number for number, weight in enumerate(weights) if weight]
    if stop == "all":
        return sum(counts[number] for number in live)
    total, left, gone = 0.0, list(counts), list[int]()
    while live:
        leg = Schedule(*leg_of(weights, key, gone))
        # Components without samples in the lane are dropped at their first draw.
        absent = {leg.find(number, 0): number for number in live if not counts[number]}
        at = min(absent, default=math.inf)
        ends = [
            leg.find(number, left[number]) if left[number] >= 0 else -1 for number in live if counts[number]
        ]
        if ends and (end := min(ends) if stop == "first" else max(ends)) <= at:
            return total + end
        gone.append(absent[at])
        live.remove(absent[at])
        total += at
        if not goes_on_without(absent[at], live, endless, stop):
            return total
        left = [had - drawn for had, drawn in zip(left, leg.counts(int(at)), strict=True)]
    return total


def leg_of(
    weights: Sequence[float], key: Sequence[int], gone: Sequence[int]
) -> tuple[Sequence[float], Sequence[int]]:
    """Weights and key of the leg in which these components are left out."""
    return [0 if number in gone else weight for number, weight in enumerate(weights)], (*key, *sorted(gone))


def _huffman(parts: Sequence[int]) -> _Tree:
    """The tree over all components with a weight; without phases."""
    # The second entry decides among equals, so that every machine makes the same tree.
    heap: list[tuple[int, int, _Tree]] = [(part, number, number) for number, part in enumerate(parts) if part]
    if len(heap) == 4:  # two and two: a third level would let a component be more than one sample off
        first, second, third, fourth = sorted(heap)
        heap = [_joined(second, first), _joined(fourth, third)]
    heapq.heapify(heap)
    while len(heap) > 1:
        lighter = heapq.heappop(heap)
        heapq.heappush(heap, _joined(heapq.heappop(heap), lighter))
    return heap[0][2]


def _joined(heavier: tuple[int, int, _Tree], lighter: tuple[int, int, _Tree]) -> tuple[int, int, _Tree]:
    whole = heavier[0] + lighter[0]
    return whole, lighter[1], _Node((heavier[0] << _BITS) // whole, 0, heavier[2], lighter[2])


def _with_phases(tree: _Tree, words: Iterator[int], short: int = 0, over: int = 0) -> _Tree:
    """The tree with phases that are drawn.

    What a node has had is between ``short`` below and ``over`` above its part, of the ones that they are
    parts of. That of its left child then is from ``p short + 1 - u`` below to ``p over + u`` above, that of
    its right child from ``q short + u`` below to ``q over + 1 - u`` above. The phase is one of those for
    which none of these is above one; where there is none, the one that is nearest to that.
    """
    if isinstance(tree, int):
        return tree
    p, q = tree.share, _ONE - tree.share
    low = max(p * short, q * over) >> _BITS
    high = _ONE - (max(p * over, q * short) >> _BITS)
    word = next(words) >> 64 - _BITS
    phase = low + ((high - low) * word >> _BITS) if low < high else (low + high) // 2
    phase = min(max(phase, 0), _ONE - 1)
    left = _with_phases(tree.left, words, (p * short >> _BITS) + _ONE - phase, (p * over >> _BITS) + phase)
    right = _with_phases(tree.right, words, (q * short >> _BITS) + phase, (q * over >> _BITS) + _ONE - phase)
    return _Node(tree.share, phase, left, right)


def _drawn(tree: _Tree, first: int, count: int) -> NDArray[np.int64]:
    """``Schedule.draws`` of a tree, in its own draws."""
    if isinstance(tree, int) or not count:
        return np.full(count, tree if isinstance(tree, int) else 0)
    begin = tree.share * first + tree.phase
    before = begin >> _BITS
    lefts = (tree.share * np.arange(count + 1) + (begin & _ONE - 1)) >> _BITS
    is_left = lefts[1:] > lefts[:-1]
    went = int(lefts[-1])
    drawn = np.empty(count, np.int64)
    drawn[is_left] = _drawn(tree.left, before, went)
    drawn[~is_left] = _drawn(tree.right, first - before, count - went)
    return drawn


def _find(tree: _Tree, component: int, nth: int) -> int | None:
    """The draw of the tree that takes sample ``nth`` of a component; None if it has no such component."""
    if isinstance(tree, int):
        return nth if tree == component else None
    inside = _find(tree.left, component, nth)
    if inside is not None:  # the last one before floor(p m + u) is above it
        return -((tree.phase - (inside + 1 << _BITS)) // tree.share) - 1
    inside = _find(tree.right, component, nth)
    if inside is not None:  # likewise m - floor(p m + u), which is ceil(q m - u)
        return ((inside << _BITS) + tree.phase) // (_ONE - tree.share)
    return None


# Weights of a mixture's components, in each epoch. Pure.

Weights: TypeAlias = Sequence[float] | Mapping[str, float]
"""A number for each component: in their order, or by their names."""

# So that any sum is finite.
_MOST = 1e300


@dataclass(frozen=True)
class EpochWeights:
    """The weights, epoch by epoch.

    Args:
        names: Of the components.
        given: The weights of all epochs; a mapping from the first epoch of each set of weights, from 0 on; a
            function of the epoch; or None, for equal ones.

    Raises:
        TypeError: They are of another type.
        ValueError: They are not weights of these components; the message says why.
    """

    names: tuple[str, ...]
    given: Weights | Mapping[int, Weights] | Callable[[int], Weights] | None = None

    def __post_init__(self) -> None:
        given: Any = self.given
        if given is None or callable(given):
            self.of(0)
        else:  # as tuples: the caller may change a list, and an iterator gives its numbers once
            kept = self._of_epochs(given) or self._checked(given, "weights")
            object.__setattr__(self, "given", kept)

    def _of_epochs(self, given: Any) -> dict[int, tuple[float, ...]]:
        """Weights by epoch; an empty dict if they are given in another form."""
        if not isinstance(given, Mapping):
            return {}
        by_epoch = {epoch: found for key, found in given.items() if (epoch := as_whole(key)) is not None}
        if len(by_epoch) < len(given):
            return {}
        if by_epoch and min(by_epoch) != 0:
            raise ValueError(
                f"weights by epoch should begin with epoch 0, but got those of {sorted(by_epoch)}"
            )
        return {epoch: self._checked(found, f"weights[{epoch}]") for epoch, found in by_epoch.items()}

    def of(self, epoch: int) -> tuple[float, ...]:
        """The weights of an epoch, one for each component.

        Raises:
            TypeError, ValueError: A function gave no weights for it.
        """
        given: Any = self.given
        if given is None:
            return (1.0,) * len(self.names)
        if callable(given):
            return self._checked(given(epoch), f"weights({epoch})")
        found: tuple[float, ...] = given
        if isinstance(given, Mapping):
            found = given[max(begin for begin in given if begin <= epoch)]
        return found

    def describe(self) -> Any:
        """As JSON values: what is given, a function by its name."""
        given: Any = self.given
        if callable(given):
            return f"{getattr(given, '__qualname__', type(given).__qualname__)}()"
        if isinstance(given, Mapping):
            return {str(epoch): list(given[epoch]) for epoch in sorted(given)}
        return list(self.of(0))

    def _checked(self, weights: Any, what: str) -> tuple[float, ...]:
        """The weights in the order of the components."""
        names = self.names
        if isinstance(weights, Mapping):
            if weights.keys() != set(names):
                raise ValueError(
                    f"{what} should have a weight for each of {list(names)}, but got them for {list(weights)}"
                )
            weights = [weights[name] for name in names]
        if isinstance(weights, str | bytes | Set) or not isinstance(weights, Iterable):
            raise TypeError(
                f"{what} should be a number for each component, in a list or by name, but got "
                f"{type(weights).__name__}"
            )
        found = list(weights)
        if len(found) != len(names):
            raise ValueError(f"{what} should be {len(names)}, one for each component, but got {len(found)}")
        for name, weight in zip(names, found, strict=True):
            if isinstance(weight, bool) or not isinstance(weight, Real):
                raise TypeError(f"{what} should be numbers, but got {weight!r} for {name!r}")
            # NumPy's smaller floats would warn of the bound, so they become Python's; integers may be of any
            # size.
            if not 0 <= (weight if isinstance(weight, int) else float(weight)) <= _MOST:
                raise ValueError(
                    f"{what} should be 0 or more, up to {_MOST:g}, but got {weight!r} for {name!r}"
                )
        if not any(found):
            raise ValueError(f"{what} should have one above 0, or nothing is drawn, but all are 0")
        return tuple(float(weight) for weight in found)
