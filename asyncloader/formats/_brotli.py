"""One brotli stream at a time, with output that is bounded."""

from __future__ import annotations

from typing import Any

__all__ = ["BrotliStream"]


def _open_stream() -> Any:
    try:
        import brotli
    except ImportError as error:
        raise ImportError("reading brotli needs a package: pip install asyncloader[mds]") from error
    stream = brotli.Decompressor()
    if not hasattr(stream, "can_accept_more_data"):  # one that writes out whatever a few bytes ask for
        raise ImportError(f"reading brotli needs brotli 1.2 or later, found {brotli.__version__}")
    return stream


class BrotliStream:
    """Decompress one stream; the protocol of :class:`lzma.LZMADecompressor`.

    What follows a stream in the same call is an error of the stream.

    Raises:
        ImportError: The package is not installed, or too old.
        ValueError: From ``decompress``: the stream is corrupt.
    """

    unused_data = b""

    def __init__(self) -> None:
        self._stream = _open_stream()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        finished: bool = self._stream.is_finished()
        return finished

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next output, of at most ``max_length``."""
        try:
            # Its buffer doubles until it is as long as the limit, or longer.
            output: bytes = self._stream.process(data, output_buffer_limit=max_length // 2)
        except Exception as error:  # brotli.error, which is not imported here for that
            raise ValueError(str(error)) from error
        self.needs_input = self._stream.can_accept_more_data()
        return output
