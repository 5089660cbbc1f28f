"""The types that all rooms share: samples, the bytes that they are made of, and positions.

A *position* says where to reopen a stream so that it continues with the next sample. It is a list of plain
dicts of JSON values, one for each stage of the dataset: the source, then the operators, then the batching. A
stage that has nothing to remember has an empty one, which is left out at the end; so the list is empty before
the first sample. The entry of a source that is made of several datasets has a position of each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Sample: TypeAlias = dict[str, Any]
Position: TypeAlias = Sequence[Mapping[str, Any]]
Buffer: TypeAlias = bytes | bytearray | memoryview


def entry_of(position: Position, stage: int) -> Mapping[str, Any]:
    """What a stage has noted in a position; empty if it has nothing to remember."""
    return position[stage] if stage < len(position) else {}


def with_entry(position: Position, stage: int, entry: Mapping[str, Any]) -> Position:
    """A position of the stages before this one, with the entries of this one."""
    if not entry:
        return position
    before = [*position[:stage], *[{}] * (stage - len(position))]
    noted = position[stage] if stage < len(position) else {}
    return [*before, {**noted, **entry}]


class Span(NamedTuple):
    """Bytes of a shard, from offset ``start`` up to ``stop``, exclusive."""

    start: int
    stop: int


class Answer(NamedTuple):
    """What a plan receives for a span that it requested.

    Attributes:
        content: The bytes; fewer than requested if the shard ends before.
        length: Of the whole shard, in bytes.
        version: Names this version of the shard (its ETag); None if its store has no such name.
    """

    content: bytes
    length: int
    version: str | None


@dataclass(frozen=True, slots=True)
class Layout:
    """What to read of a shard: the result of its plan.

    Attributes:
        spans: In the order in which the decoder is fed them; each has at least one byte.
        open_decoder: Makes the decoder, which is fed the bytes of the spans one after another, in any
            chunking. It knows from their order where each belongs.
        samples: How many samples the shard says that it holds, in all; None if it does not say.
        class_names: By column, the names of the classes of its labels, if the shard has them.
        passes_over: Whether ``open_decoder`` takes ``pass_over``, see ``formats.decoder``.
    """

    spans: tuple[Span, ...]
    open_decoder: Callable[[], Any]
    samples: int | None = None
    passes_over: bool = False
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Unpacked(NamedTuple):
    """What a shard that is compressed as a whole should be after decompression.

    Attributes:
        size_bytes: Its length.
        hashed: Its digest, with the algorithm, one of those in ``formats.digest``; None if none is known.
        or_bytes: Another length that it may have instead, if an index may count in two ways.
    """

    size_bytes: int
    hashed: tuple[str, bytes] | None = None
    or_bytes: int | None = None


Planning: TypeAlias = Generator[Span, Answer, Layout]
"""The plan of what to read of a shard that is not read from front to back. It yields spans one at a time (a
footer), is sent an ``Answer`` for each, and returns what to read. Pure: no I/O, no await."""
