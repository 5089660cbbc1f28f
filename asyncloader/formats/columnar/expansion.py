"""Arrow's compressed batches by what they claim to become: one that would take gigabytes is refused before.

Each compressed buffer begins with its length when it is decompressed. pyarrow takes that much memory, of
whatever a batch has together, and has no bound of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import FormatError
from .flatbuffers import Table

__all__ = ["check_expansion"]

# As of a page of Parquet.
_MOST_BYTES = 256 << 20
_MOST_RATIO = 100

# ``Message.fbs``: of a message, and of what it has.
_KIND, _HEADER = 1, 2
_DICTIONARY_KIND = 2
_DATA_OF_DICTIONARY = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = "<qq"  # offset in the body, and length

# How version 0.17 said that buffers are compressed, which pyarrow still reads.
_OLD_COMPRESSION = b"ARROW:experimental_compression"

_LENGTH_BYTES = 8


def check_expansion(metadata: bytes, read_body: Callable[[int, int], bytes], what: str) -> None:
    """Look at the buffers of a batch, or of a dictionary.

    Args:
        metadata: Of its message.
        read_body: Gives of the message's body as many bytes from an offset on, or fewer if it ends before.
        what: It is, for messages.

    Raises:
        FormatError: They would take too much memory, or the metadata is damaged.
    """
    message = Table(metadata, "the metadata of a message")
    batch = message.table(_HEADER)
    if batch is not None and message.number(_KIND, "<B") == _DICTIONARY_KIND:
        batch = batch.table(_DATA_OF_DICTIONARY)
    if batch is None or (batch.table(_COMPRESSION) is None and _OLD_COMPRESSION not in metadata):
        return
    found = claimed = 0
    for at, length in batch.structs(_BUFFERS, _BUFFER):
        content = read_body(at, _LENGTH_BYTES) if length >= _LENGTH_BYTES and at >= 0 else b""
        if len(content) == _LENGTH_BYTES:
            found += length
            claimed += max(int.from_bytes(content, "little", signed=True), 0)  # -1: it is as it was
    most = max(_MOST_BYTES, _MOST_RATIO * found)
    if claimed > most:
        raise FormatError(
            f"{what}: {found} bytes are to become {claimed}; at most {most} are decompressed: it is damaged, "
            "or made to use up memory; else write smaller batches"
        )
