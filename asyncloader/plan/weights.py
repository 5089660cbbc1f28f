"""Weights of a mixture's components, in each epoch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from ..quantity import as_whole

__all__ = ["EpochWeights", "Weights"]

Weights: TypeAlias = Sequence[float] | Mapping[str, float]
"""A number for each component: in their order, or by their names."""

# So that the sum of any is finite.
_MOST = 1e300


@dataclass(frozen=True)
class EpochWeights:
    """The weights, epoch by epoch.

    Args:
        names: Of the components.
        given: The weights of all epochs; by the epoch from which on they count, from 0 on; a function of the
            epoch; or None, for equal ones.

    Raises:
        TypeError: They are of another type.
        ValueError: They are no weights of these components; a message says what is wrong with them.
    """

    names: tuple[str, ...]
    given: Weights | Mapping[int, Weights] | Callable[[int], Weights] | None = None

    def __post_init__(self) -> None:
        given: Any = self.given
        if given is None or callable(given):
            self.of(0)
        else:  # as tuples: a list may be changed by whoever gave it, and an iterator has its numbers once
            kept = self._of_epochs(given) or self._checked(given, "weights")
            object.__setattr__(self, "given", kept)

    def _of_epochs(self, given: Any) -> dict[int, tuple[float, ...]]:
        """Weights by epoch; none if they are given otherwise."""
        if not isinstance(given, Mapping):
            return {}
        by_epoch = {epoch: found for key, found in given.items() if (epoch := as_whole(key)) is not None}
        if len(by_epoch) < len(given):
            return {}
        if by_epoch and min(by_epoch) != 0:
            raise ValueError(
                f"weights that go by epoch should begin with epoch 0, but got those of {sorted(by_epoch)}"
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
            # NumPy's smaller floats, which would warn of the bound, as Python's; integers may be of any size.
            if not 0 <= (weight if isinstance(weight, int) else float(weight)) <= _MOST:
                raise ValueError(
                    f"{what} should be 0 or more, up to {_MOST:g}, but got {weight!r} for {name!r}"
                )
        if not any(found):
            raise ValueError(f"{what} should have one above 0, or nothing is drawn, but all are 0")
        return tuple(float(weight) for weight in found)
