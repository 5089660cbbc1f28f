"""Read shards once, and see what a manifest would say of them."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from .._flow.budget import claim_alone
from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import Engine
from ..digest import open_digest
from ..errors import FormatError
from ..formats import open_decoder
from ..stores.reading.reader import ShardChunks, read_shards
from ..stores.router import Stores
from ..stores.urls import redact
from ..types import Buffer
from .check import ShardCheck
from .entries import MAX_MANIFEST_BYTES, Expected

__all__ = ["Survey", "differences"]

# Eight large parts in flight: shards are read one after another, and each as fast as one may be.
_READ_BYTES = 64 << 20


class Survey:
    """Reads shards from wherever they are, one after another.

    Args:
        engine: Where the reading runs.
        stores: The clients; whoever made them closes them.
    """

    def __init__(self, engine: Engine, stores: Stores) -> None:
        self._engine = engine
        self._stores = stores

    def measure(self, url: str, format_name: str) -> Expected:
        """What ``url`` is: read to its end, its samples counted, held against its store's own digests.

        Raises:
            StoreError: It cannot be read.
            FormatError: It is not of its format.
        """
        shown = redact(url)
        digests = {name: digest for name in ("sha256", "crc32c") if (digest := open_digest(name))}
        decoder = open_decoder(format_name)
        check = ShardCheck(shown, None, {})
        size = samples = 0
        with closing(self._open(url)) as out, closing(out.receive()) as chunks:
            try:
                for chunk in check.watch(chunks):
                    size += len(chunk)
                    for digest in digests.values():
                        digest.update(chunk)
                    samples += sum(map(len, decoder.feed(chunk)))
                samples += sum(map(len, decoder.finish()))
            except FormatError as error:
                error.shard = shown
                raise
        return Expected(size, samples, **{name: digest.digest() for name, digest in digests.items()})

    def read(self, url: str) -> bytes:
        """A small object as a whole: a manifest, and no more of it than one may have.

        Raises:
            StoreError: It cannot be read.
        """
        pieces: list[Buffer] = []
        with closing(self._open(url)) as out, closing(out.receive()) as chunks:
            while sum(map(len, pieces)) <= MAX_MANIFEST_BYTES:
                try:
                    pieces.append(chunks.receive())
                except EndOfChannel:
                    break
        return b"".join(pieces)

    def _open(self, url: str) -> Channel[ShardChunks]:
        out = Channel[ShardChunks](1)
        self._engine.submit(
            partial(read_shards, self._stores, [(url, 0)], claim_alone(_READ_BYTES), out), out
        )
        return out


def differences(expected: Expected, found: Expected) -> list[str]:
    """What of a shard is not as expected, each with both values; digests as far as both are known."""
    wrong = []
    if found.size_bytes != expected.size_bytes:
        wrong.append(f"size_bytes: expected {expected.size_bytes}, found {found.size_bytes}")
    if expected.samples is not None and found.samples != expected.samples:
        wrong.append(f"samples: expected {expected.samples}, found {found.samples}")
    common = expected.digests.keys() & found.digests.keys()
    if not common:
        wrong.append(
            f"{' and '.join(expected.digests)} cannot be computed: pip install asyncloader[checksums]"
        )
    for algorithm in sorted(common):
        wanted, other = expected.digests[algorithm], found.digests[algorithm]
        if other != wanted:
            wrong.append(f"{algorithm}: expected {wanted.hex()}, found {other.hex()}")
    return wrong
