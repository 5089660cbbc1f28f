"""Names the entries of a batch in messages: by number, by key, and by where the sample came from.

A ``collate_fn`` is given samples and no more, so that anybody's will do. Where they came from is told beside
it, for those who ask once something has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

__all__ = ["name_entry", "standing_for", "telling_entries", "whole_of"]


class Told(NamedTuple):
    """What is known of the samples that are being collated.

    Attributes:
        samples: Those.
        place_of: Says of one, by its index, where it came from; None if nobody knows.
        whole: The samples that they stand for, with all of their fields.
    """

    samples: Sequence[Any]
    place_of: Callable[[int], str] | None
    whole: Sequence[Any]


_told: ContextVar[Told | None] = ContextVar("asyncloader_entries", default=None)


@contextmanager
def telling_entries(samples: Sequence[Any], place_of: Callable[[int], str]) -> Iterator[None]:
    """While a batch is collated: where its samples came from, asked by their index only if there is need."""
    token = _told.set(Told(samples, place_of, samples))
    try:
        yield
    finally:
        _told.reset(token)


@contextmanager
def standing_for(samples: Sequence[Any], others: Sequence[Any]) -> Iterator[None]:
    """While ``others`` are collated: they are ``samples`` without some fields, each from the same place."""
    told = _told.get()
    known = told if told is not None and told.samples is samples else Told(samples, None, samples)
    token = _told.set(known._replace(samples=others))
    try:
        yield
    finally:
        _told.reset(token)


def whole_of(samples: Sequence[Any]) -> Sequence[Any]:
    """What ``samples`` stand for: the same with all of their fields."""
    told = _told.get()
    return told.whole if told is not None and told.samples is samples else samples


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
    if told is None or told.place_of is None:
        return None
    samples, place_of = told.samples, told.place_of
    if index < len(samples) and samples[index] is sample:
        return place_of(index)
    same = [nth for nth, other in enumerate(samples) if other is sample]
    return place_of(same[0]) if len(same) == 1 else None
