"""Chunks whose samples are rows of Arrow: a file of Arrow behind a table of offsets that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ...blocks import Block
from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from .._push import PushDecoder
from ..decoder import Decoder

__all__ = ["TAIL_BYTES", "find_footer", "plan_inside"]

_MAGIC = b"LDARW01\0"
_LENGTH_BYTES = 4

#: What is to be known of the end of a chunk.
TAIL_BYTES = _LENGTH_BYTES + len(_MAGIC)


def find_footer(tail: bytes, length: int) -> Span | None:
    """Where the file of Arrow is in a chunk; None if there is none.

    Args:
        tail: The end of the chunk, ``TAIL_BYTES`` at least.
        length: Of the chunk.

    Raises:
        FormatError: It is said to be longer than the chunk.
    """
    if not tail.endswith(_MAGIC):
        return None
    size = int.from_bytes(tail[-TAIL_BYTES : -len(_MAGIC)], "little")
    stop = length - TAIL_BYTES
    if not 0 < size <= stop:
        raise FormatError(
            f"litdata: damaged: rows of {size} bytes are said to be in a chunk of {length}", offset=stop
        )
    return Span(stop - size, stop)


def plan_inside(plan: Planning, inside: Span, known: Answer, samples: int, start: int) -> Planning:
    """The plan of a file that is inside of a chunk, as one of the chunk.

    Args:
        plan: Of the file.
        inside: Where it is.
        known: The beginning of the chunk, which is not asked for again.
        samples: How many the chunk says that it has.
        start: How many of them were had already.
    """
    answer: Answer | None = None
    while True:
        try:
            asked = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            layout: Layout = end.value
            spans = tuple(Span(start + inside.start, stop + inside.start) for start, stop in layout.spans)
            return Layout(spans, partial(_RowsDecoder, layout.open_decoder, samples, start), samples)
        except FormatError as error:
            raise _moved(error, inside.start) from None
        span = Span(asked.start + inside.start, min(asked.stop + inside.start, inside.stop))
        content = known.content[span.start : span.stop]
        if len(content) < span.stop - span.start:
            content = (yield span).content
        answer = Answer(content, inside.stop - inside.start, known.version)


def _moved(error: FormatError, begin: int) -> FormatError:
    """The error of a file as one of the chunk that it begins in."""
    if error.offset is not None:
        error.offset += begin
    return error


class _RowsDecoder(PushDecoder):
    """Hold the rows of a file against the number of samples that its chunk has.

    Args:
        open_rows: Makes the decoder of the file.
        samples: How many there should be.
        start: The first that comes.
    """

    def __init__(self, open_rows: Callable[[], Decoder], samples: int, start: int) -> None:
        super().__init__()
        self._rows = open_rows()
        self._samples = samples
        self._reached = start

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._watched(self._rows.feed(chunk))

    def _decode_end(self) -> Iterator[Block]:
        yield from self._watched(self._rows.finish())
        if self._reached != self._samples:
            raise FormatError(
                f"litdata: damaged: the chunk has {self._samples} samples, and the rows in it end at "
                f"{self._reached}",
                offset=0,
            )

    def _watched(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            self._reached = block.trail.place(len(block) - 1).sample + 1
            yield block
