"""The framing of Arrow's messages: where each begins and ends, and of what kind it is.

pyarrow decodes messages, but only from a file that it may block on; this much of the format tells when the
next one is there as a whole. Offsets in metadata are checked, not trusted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from ...errors import FormatError
from .flatbuffers import Table

__all__ = ["CONTINUATION", "Kind", "Message", "Messages"]

CONTINUATION = b"\xff\xff\xff\xff"
"""What messages begin with, since Arrow 0.15."""

# Far above the metadata of a batch with a million columns.
_MOST_METADATA_BYTES = 256 << 20
_MOST_BODY_BYTES = 1 << 40


class Kind(IntEnum):
    """The headers that a message may have, of those that are of use here (``Message.fbs``)."""

    SCHEMA = 1
    DICTIONARY = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        kind: Of its header, mostly a ``Kind``.
        prefix: The marker and the length in front of the metadata.
        metadata: A flatbuffer.
        body: The buffers.
    """

    kind: int
    prefix: bytes
    metadata: bytes
    body: bytes


class Messages:
    """Cuts a stream into messages; feed it bytes in any chunking.

    Attributes:
        at: Offset behind the last message, from the first byte fed.
        ended: The end marker was there: a length of 0.
    """

    def __init__(self) -> None:
        self.at = 0
        self.ended = False
        self._held: deque[bytes] = deque()
        self._used = 0  # of the first one
        self._held_bytes = 0
        self._prefix = b""
        self._metadata = b""
        self._body_bytes = 0

    @property
    def is_within(self) -> bool:
        """Whether a message was begun and is not whole."""
        return not self.ended and (bool(self._prefix) or self._held_bytes > 0)

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """The messages that ``chunk`` completes.

        Raises:
            FormatError: The bytes are no message, or come after the end marker.
        """
        if chunk:
            self._held.append(chunk)
        self._held_bytes += len(chunk)
        while not self.ended:
            if not self._prefix:
                # Before Arrow 0.15 there was no marker in front of the length.
                marked = self._held_bytes >= 4 and self._peek(4) == CONTINUATION
                if self._held_bytes < (8 if marked else 4):
                    return
                self._prefix = self._take(8 if marked else 4)
            length = int.from_bytes(self._prefix[-4:], "little", signed=True)
            if length == 0:
                self.at += len(self._prefix)
                self.ended = True
                break
            if not 0 < length <= _MOST_METADATA_BYTES:
                raise FormatError(
                    f"arrow: damaged: a message claims {length} bytes of metadata", offset=self.at
                )
            if not self._metadata:
                if self._held_bytes < length:
                    return
                self._metadata = self._take(length)
                self._kind, self._body_bytes = _header_of(self._metadata, self.at)
            if self._held_bytes < self._body_bytes:
                return
            message = Message(self._kind, self._prefix, self._metadata, self._take(self._body_bytes))
            self.at += len(self._prefix) + length + self._body_bytes
            self._prefix = self._metadata = b""
            yield message
        if self.ended and self._held_bytes:
            raise FormatError("arrow: damaged: bytes follow the stream after its end marker", offset=self.at)

    def _peek(self, size: int) -> bytes:
        first = self._held[0]
        if len(first) - self._used < size:
            self._held = deque([b"".join([first[self._used :], *islice(self._held, 1, None)])])
            self._used = 0
        return self._held[0][self._used : self._used + size]

    def _take(self, size: int) -> bytes:
        self._held_bytes -= size
        taken: list[bytes] = []
        while size:
            first = self._held[0]
            piece = first[self._used : self._used + size]
            # Not the rest cut off: of many small messages in a chunk each would copy what is behind it.
            self._used += len(piece)
            if self._used == len(first):
                self._held.popleft()
                self._used = 0
            taken.append(piece)
            size -= len(piece)
        return taken[0] if len(taken) == 1 else b"".join(taken)


def _header_of(metadata: bytes, offset: int) -> tuple[int, int]:
    """Kind and length of the body of a message: its second and fourth field."""
    try:
        table = Table(metadata, "the metadata of a message")
        kind, body_bytes = table.number(1, "<B"), table.number(3, "<q")
    except FormatError as error:
        error.offset = offset
        raise
    if not 0 <= body_bytes <= _MOST_BODY_BYTES:
        raise FormatError(f"arrow: damaged: a message claims a body of {body_bytes} bytes", offset=offset)
    return kind, body_bytes
