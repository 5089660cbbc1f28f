"""One zstd frame at a time, with output that is bounded by counting blocks.

The ``zstandard`` package writes out all that its input holds, and an RLE block makes 128 KiB of four
bytes. So the block headers are read here (RFC 8878, 3.1.1) and the input is handed on at most seven
blocks at a time. That also tells where a frame ends, and which frames are to be skipped.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["ZstdFrame"]

_BLOCK_BYTES = 128 << 10  # Block_Maximum_Size
_BLOCKS = 7  # and one that was begun by the call before: 1 MiB
# What the zstd program accepts without --long: a frame header may claim a window of terabytes.
_WINDOW_LOG = 27
_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50


def _open_frame() -> Any:
    """A decoder of one frame: ``decompress(data)`` and ``eof``."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("reading zstd needs a package: pip install zstandard") from error
    return zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).decompressobj()


class ZstdFrame:
    """Decompress one frame; the protocol of :class:`lzma.LZMADecompressor`.

    Raises:
        ImportError: No zstd decoder is installed.
        ValueError: From ``decompress``: the frame is corrupt.
    """

    def __init__(self) -> None:
        self._frame: Any = None
        self._input = b""
        self._pass = 0  # bytes that may be handed on before the next header
        self._next = "frame"
        self._has_checksum = False
        self.eof = False
        self.needs_input = True

    @property
    def unused_data(self) -> bytes:
        return self._input if self.eof else b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next output: at most 1 MiB, which ``max_length`` must allow."""
        assert max_length >= (_BLOCKS + 1) * _BLOCK_BYTES
        data = self._input + data
        at, blocks = 0, 0
        self.needs_input = False
        while True:
            step = min(self._pass, len(data) - at)
            at += step
            self._pass -= step
            if self._next == "end" and not self._pass:
                self.eof = True
                break
            if blocks == _BLOCKS:
                break
            if self._pass or not (length := self._measure(data[at : at + 8])):
                self.needs_input = True
                break
            blocks += 1
            self._pass = length
        self._input = data[at:]
        return self._hand_on(data[:at])

    def _hand_on(self, data: bytes) -> bytes:
        if self._frame is None:  # a skippable frame
            return b""
        try:
            output: bytes = self._frame.decompress(data)
        except Exception as error:  # two libraries, and neither is imported for its exception here
            raise ValueError(str(error)) from error
        if self._frame.eof != self.eof:
            raise ValueError("frame does not end where its blocks do")
        return output

    def _measure(self, head: bytes) -> int:
        """Length of what begins with ``head``, or 0 if that is too short to tell."""
        if self._next == "frame":
            return self._measure_frame_header(head)
        if self._next == "checksum":
            self._next = "end"
            return 4
        if len(head) < 3:
            return 0
        header = int.from_bytes(head[:3], "little")
        size = header >> 3
        kind = header >> 1 & 3
        if kind == 3 or size > _BLOCK_BYTES:
            raise ValueError("invalid block header")
        if header & 1:
            self._next = "checksum" if self._has_checksum else "end"
        return 3 + (1 if kind == 1 else size)

    def _measure_frame_header(self, head: bytes) -> int:
        if len(head) < 5:
            return 0
        magic = int.from_bytes(head[:4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            if len(head) < 8:
                return 0
            self._next = "end"
            return 8 + int.from_bytes(head[4:8], "little")
        if magic != _MAGIC:
            raise ValueError("not a zstd frame")
        self._frame = _open_frame()
        self._next = "block"
        descriptor = head[4]
        self._has_checksum = bool(descriptor & 4)
        single_segment = descriptor >> 5 & 1
        dictionary_id = (0, 1, 2, 4)[descriptor & 3]
        content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - single_segment) + dictionary_id + content_size
