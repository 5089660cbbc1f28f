"""The nouns every room shares: samples, the bytes that they are made of, and where to go on.

A *position* says where to reopen a stream so that it goes on with the next sample. It is a plain
dict of JSON values, and nests: each stage that has something to remember adds its own entries around
those of the stage before it. It nests by dicts in dicts: a list in it holds no dict (``plan/state_form``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Answer", "Buffer", "Layout", "Planning", "Position", "Sample", "Span", "Unpacked"]

Sample: TypeAlias = dict[str, Any]
Position: TypeAlias = Mapping[str, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview


class Span(NamedTuple):
    """Bytes of a shard, from offset ``start`` up to ``stop``, exclusive."""

    start: int
    stop: int


class Answer(NamedTuple):
    """What a plan gets for a span that it asked for.

    Attributes:
        content: The bytes; fewer than were asked for where the shard ends before.
        length: Of the whole shard, in bytes.
        version: Names this version of the shard (its ETag); None where its store has no such name.
    """

    content: bytes
    length: int
    version: str | None


@dataclass(frozen=True, slots=True)
class Layout:
    """What is to be read of a shard, as its plan has found out.

    Attributes:
        spans: Not empty any of them, in the order in which the decoder is fed them.
        open_decoder: Makes the decoder, which is fed the bytes of the spans one after another, in any
            chunking: it knows by their order where each belongs.
        samples: How many the shard holds by its own account, whatever is read of it; None if it does not say.
        class_names: By column, of the classes that it numbers, where the shard says so.
        passes_over: Whether ``open_decoder`` takes ``pass_over``, see ``formats.decoder``.
    """

    spans: tuple[Span, ...]
    open_decoder: Callable[[], Any]
    samples: int | None = None
    passes_over: bool = False
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Unpacked(NamedTuple):
    """What a shard that is compressed as a whole should become.

    Attributes:
        size_bytes: Its length then.
        hashed: A digest of that, with its algorithm, one of those in ``digest``; None if none is known.
        or_bytes: Another length that it may have instead, where an index may count in two ways.
    """

    size_bytes: int
    hashed: tuple[str, bytes] | None = None
    or_bytes: int | None = None


Planning: TypeAlias = Generator[Span, Answer, Layout]
"""The plan of what to read of a shard that is not read from front to back: asks for spans one at a time (a
footer), is sent an ``Answer`` to each, and returns what is to be read. Pure: no I/O, no await."""
