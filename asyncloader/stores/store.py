"""What a store is: one small class that opens a byte range, and translates its client's errors.

Retries, hedging, rate control, the cache, read-ahead and budgets are written once, around all stores.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..types import Buffer, Span

if TYPE_CHECKING:
    from .local import FileSpan

#: Of a buffer on its way from a socket or a file to a decoder; when it is freed, the allocator keeps it. For
#: so many bytes, the cost of a read and of waking the decoding thread is small: with half as many, 1 GB of
#: tar from a server on loopback took a fifth more of the processor's time.
BUFFER_BYTES = 2 << 20


# As the stop of a read: up to the end. Servers count in signed integers of 64 bits.
NO_END = 1 << 62


@dataclass(slots=True)
class Body:
    """An open byte range.

    Attributes:
        start: Offset of its first byte, which is 0 if the server ignored the range.
        stop: Offset after its last byte, as the server promised; None if it promised nothing.
        total: Length of the whole object, None if unknown.
        etag: Names this version of the object; None if the store has no such name.
        chunks: The bytes, in order, in pieces of the client's choice. The store closes them: a task without
            an owner would close a generator that is garbage-collected.
        digests: Of the whole object, as the store promises them, by algorithm as hashlib spells it, or
            ``crc32`` and ``crc32c`` (big-endian).
        span_of: Of a local file: returns spans of it for the decoding thread to read, in place of ``chunks``;
            None if reading them would have to wait.
    """

    start: int
    stop: int | None
    total: int | None
    etag: str | None
    chunks: AsyncIterator[Buffer]
    digests: Mapping[str, bytes] = field(default_factory=dict)
    span_of: Callable[[Sequence[Span]], FileSpan | None] | None = field(default=None, repr=False)


class Store(Protocol):
    """Opens byte ranges of the objects of one scheme and origin."""

    def read(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[Body]:
        """Open bytes ``start`` up to ``stop`` (exclusive) of ``url``; an object may end earlier.

        An empty object opens as an empty body. If ``etag`` is given, only that version is read. An exception
        of the caller passes through unchanged.

        Raises:
            TransientError: On entering or while reading; a retry may help.
            StoreError: Likewise, if a retry would not help. It names the place, and is never a client's own
                exception.
        """
        ...


async def no_chunks() -> AsyncGenerator[Buffer, None]:
    """The chunks of an empty body."""
    return
    yield b""


def clip(chunk: Buffer, start: int, stop: int) -> Buffer:
    """The bytes of ``chunk`` from ``start`` to ``stop``, counted from its first; both may be outside."""
    if start <= 0 and stop >= len(chunk):
        return chunk
    return memoryview(chunk)[max(start, 0) : max(stop, 0)]


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """How long to wait for a server, how often to retry, and whether to hedge.

    The defaults suit object stores and web servers over any distance. Use shorter times to test a pipeline
    with faults. A *part* is a range of up to 8 MiB that one request reads.

    Args:
        connect_s: The most seconds to connect, including TLS.
        first_byte_s: The most seconds from then to the first byte of the answer. 30 by default, since a store
            under load may take tens of seconds.
        stall_s: Once a body has begun, at least ``stall_bytes`` must come within this many seconds. Only the
            time that is spent waiting for the server counts, so a slow consumer is not a stall.
        stall_bytes: Fewer bytes in ``stall_s`` are a stall, and the request is retried. The default, 16 KiB
            in 15 s, is slower than any network used for training.
        attempts: The most requests for a part, counted anew once one has brought 128 KiB. Six by default,
            which with growing pauses cover the failover of a store's node.
        deadline_s: The most seconds after the first failure of a part, or the first one counted anew, in
            which another attempt may begin.
        backoff_s: Base, in seconds, of the pauses between attempts, which grow and are random.
        hedge: Send a second request for a part that the consumer waits for, if the first one takes longer
            than 95 % of earlier requests, and use the first answer. At most 5 % of requests are hedged.

    Raises:
        ValueError: A time is not positive, or ``attempts`` is below 1.
        TypeError: A value has another type.
    """

    connect_s: float = 10.0
    first_byte_s: float = 30.0
    stall_s: float = 15.0
    stall_bytes: int = 16 << 10
    attempts: int = 6
    deadline_s: float = 60.0
    backoff_s: float = 1.0
    hedge: bool = True

    @property
    def answer_s(self) -> float:
        """The most seconds to the first byte of an answer, including those to connect."""
        return self.connect_s + self.first_byte_s

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name == "hedge":
                if not isinstance(value, bool):
                    raise TypeError(f"hedge should be True or False, but got hedge={value!r}")
                continue
            kinds = (int, float) if option.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise TypeError(f"{option.name} should be a number, but got {option.name}={value!r}")
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{option.name} should be positive, but got {option.name}={value!r}")


Renew: TypeAlias = Callable[[str], str | Awaitable[str]]
"""Returns a newly signed URL in place of one that the server has refused."""


@dataclass(frozen=True)
class CacheSetting:
    """The cache of a dataset.

    Attributes:
        folder: Absolute path; the cache makes a private folder of its own in it.
        limit_bytes: Most bytes of shards kept.
        run: Names the run that made the dataset. Files of other runs are verified before their first use.
    """

    folder: str
    limit_bytes: int
    run: str


@dataclass(frozen=True)
class Access:
    """How the shards of a dataset are reached: all settings beside their URLs; frozen and picklable.

    Attributes:
        options: Storage options; not shown, since they may contain secrets.
        network: Time-outs and retries.
        renew: For presigned URLs.
        cache: None keeps nothing on disk.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    renew: Renew | None = field(default=None, repr=False)
    cache: CacheSetting | None = None


def pem_of(certificate: str) -> str:
    """The certificates of an option that is a path or the PEM itself.

    Raises:
        ValueError: Neither. It is not shown: it may be anything.
    """
    import ssl  # late: most datasets do not need it

    with suppress(OSError, ValueError, TypeError):  # of the file, and of TLS
        pem = certificate if "-----BEGIN" in certificate else Path(certificate).read_text("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
        return pem
    # Not while one of these errors is handled: they contain the option.
    raise ValueError("root_certificate should be a certificate in PEM, or the path of a file with one")
