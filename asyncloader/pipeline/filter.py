"""``.filter``, ``.filter_batches``, ``.select_columns`` ``.rename``: which samples and fields are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from operator import not_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Columns, Rows, array_of, column_of, columns_of
from ..plan.lanes import Counter, Deal, UnknownCount
from ..types import Position
from .calls import PIECE_SAMPLES, UserCalls, call_each, cut, next_size
from .lane import Blocks, Lane, Opener, Rounds
from .map import OnChunks
from .op import Op, check_names, check_plain, name_of, note_sample, shown
from .skips import Applied


@dataclass(frozen=True)
class Filter:
    """Keep the samples for which ``predicate(sample)`` is true.

    Args:
        predicate: A plain function. It must return the same for the same sample, since it is called again for
            samples of an open shuffle window after a resume.
    """

    predicate: Callable[[Any], object]

    def __post_init__(self) -> None:
        hint = "; put its answer into the sample with .map, then filter by that field"
        check_plain("filter", self.predicate, "one sample", hint)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        attempts, during = lane.attempts(start), shown(self)
        size = 1  # of the next piece
        rounds = Rounds(lane.rounds)

        with closing(upstream(start, replace(lane, columns=False, rounds=rounds))) as blocks:
            pieces = chain.from_iterable(cut(block, lambda: size) for block in blocks)
            for applied in map(partial(self._apply, lane), pieces):
                samples = len(applied.given)
                size = next_size(size, PIECE_SAMPLES, samples / max(applied.took_s, 1e-9))
                if applied.failure is None:
                    rounds.kept(len(applied.made), samples, during, lane.topology.lanes)
                if attempts is not None:
                    attempts.account(applied, during)
                if len(applied.made):
                    yield applied.made
                if applied.failure is not None:
                    raise applied.failure
                del applied

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        raise UnknownCount(f"{shown(self)} does not say how many samples it keeps")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "filter", "fn": name_of(self.predicate)}

    def _apply(self, lane: Lane, block: Block) -> Applied:
        applied = call_each(self.predicate, lane, shown(self), block, decides=True)
        at, answers = applied.at, applied.made.rows()
        if lane.leaves_out is not None:
            gone = list(compress(at, map(not_, answers)))
            lane.leave_out(shown(self), block, np.array(gone, np.int64))
        applied.at = list(compress(at, answers))
        applied.made = block if len(applied.at) == len(block) else block.take(applied.at)
        return applied


# --- a function of many samples ---


class FilterBatches(OnChunks):
    """Keep those samples of each chunk for which ``fn(columns)``, a boolean mask, is true."""

    name = "filter_batches"

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        return super().open(upstream, start, replace(lane, rounds=Rounds(lane.rounds)))

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        raise UnknownCount(f"{shown(self)} does not say how many samples it keeps")

    def made_of(self, block: Block, lane: Lane) -> Block:
        assert lane.rounds is not None, "open gives it"
        with UserCalls(lane, block.trail):
            answer = self.fn(columns_of(block))
        mask = _checked(answer, len(block))
        lane.leave_out(shown(self), block, np.flatnonzero(~mask))
        kept = block if mask.all() else block.take(np.flatnonzero(mask))
        lane.rounds.kept(len(kept), len(block), shown(self), lane.topology.lanes)
        return kept


def _checked(answer: Any, count: int) -> NDArray[np.bool_]:
    mask = column_of(answer) if isinstance(answer, list) else array_of(answer)
    if not isinstance(mask, np.ndarray):
        mask = None
    elif mask.dtype == np.bool_ and mask.shape == (count,):
        return mask
    found = type(answer).__qualname__ if mask is None else f"{mask.dtype} of shape {mask.shape}"
    raise ValueError(
        f"expected the function to return a boolean mask ({count},), true for the samples to keep, "
        f"found {found}"
    )


# --- which fields a sample has, and their names ---


class _FieldOp(Op):
    """Changes every row, or the mapping of all columns at once."""

    def _change(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                changed: list[dict[str, Any]] = []
                failure: Exception | None = None
                try:
                    for sample in [block.fields] if isinstance(block, Columns) else block.rows():
                        changed.append(self._change(sample))
                except Exception as error:
                    note_sample(error, shown(self), block, len(changed))
                    failure = error
                if changed:
                    trail = block.trail
                    yield Columns(changed[0], trail) if isinstance(block, Columns) else Rows(changed, trail)
                if failure is not None:
                    raise failure  # the samples before it are good, and may have completed a batch


@dataclass(frozen=True)
class Select(_FieldOp):
    """Keep only the named fields, in this order."""

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("select_columns should get at least one field name")
        if any(map(callable, self.fields)):
            raise TypeError(
                "select_columns should get field names, but got a function: .filter(function) keeps the "
                "samples for which it is true"
            )
        check_names("select_columns", self.fields)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "select_columns", "fields": list(self.fields)}

    def _change(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _take(sample, name) for name in self.fields}


@dataclass(frozen=True)
class Rename(_FieldOp):
    """Give fields other names; the others stay as they are.

    Args:
        names: Pairs of the old name and the new one.
    """

    names: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        pairs = dict(self.names)
        if not pairs:
            raise ValueError("rename should get at least one pair of names")
        check_names("rename", (*pairs, *pairs.values()))
        if len(set(pairs.values())) < len(pairs):
            raise ValueError(f"rename would give two fields the same name: {pairs}")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "rename", "names": [list(pair) for pair in self.names]}

    def _change(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        renamed = dict(sample)
        for old, new in self.names:
            if old not in sample and new in sample:
                raise KeyError(
                    f"expected the field {old!r}, found only {list(sample)}: rename gets the old name first, "
                    f"so write rename({new}={old!r}) to call {new!r} {old!r}"
                )
        moved = {new: _take(sample, old) for old, new in self.names}
        for old, _ in self.names:
            del renamed[old]
        if clash := moved.keys() & renamed.keys():
            raise ValueError(f"rename would overwrite the fields {sorted(clash)}")
        return renamed | moved


def _take(sample: Mapping[str, Any], name: str) -> Any:
    try:
        return sample[name]
    except KeyError:
        if name in sample:
            raise  # the error of a mapping of the user's, which failed to make the field
        raise KeyError(f"expected the field {name!r}, found only {list(sample)}") from None
