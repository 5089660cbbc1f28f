"""Names the entries of a batch in messages: by number, by key, and by where the sample came from.

A ``collate_fn`` is given samples and no more, so that anybody's will do. Where they came from is told beside
it, for those who ask once something has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

__all__ = ["name_entry", "standing_for", "telling_entries"]

Told: TypeAlias = tuple[Sequence[Any], Callable[[int], str]]

_told: ContextVar[Told | None] = ContextVar("asyncloader_entries", default=None)


@contextmanager
def telling_entries(samples: Sequence[Any], place_of: Callable[[int], str]) -> Iterator[None]:
    """While a batch is collated: where its samples came from, asked by their index only if there is need."""
    token = _told.set((samples, place_of))
    try:
        yield
    finally:
        _told.reset(token)


@contextmanager
def standing_for(samples: Sequence[Any], others: Sequence[Any]) -> Iterator[None]:
    """While ``others`` are collated: they came from where ``samples`` did, each from the same place."""
    told = _told.get()
    token = _told.set((others, told[1]) if told is not None and told[0] is samples else told)
    try:
        yield
    finally:
        _told.reset(token)


def name_entry(samples: Sequence[Any], index: int) -> str:
    """``3``, with the ``__key__`` of that sample and where it came from, as far as it is known."""
    sample = samples[index]
    known = []
    if isinstance(sample, Mapping) and (key := sample.get("__key__")) is not None:
        known.append(f"__key__ {key!r}")
    if (place := _place_of(sample, index)) is not None:
        known.append(place)
    return f"{index} ({', '.join(known)})" if known else str(index)


def _place_of(sample: Any, index: int) -> str | None:
    """Found by the object: whoever collates may have picked from the batch, or put it in another order."""
    told = _told.get()
    if told is None:
        return None
    samples, place_of = told
    if index < len(samples) and samples[index] is sample:
        return place_of(index)
    same = [nth for nth, other in enumerate(samples) if other is sample]
    return place_of(same[0]) if len(same) == 1 else None
