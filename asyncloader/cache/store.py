"""The store of a lane that keeps whole shards on disk; and the cache's options."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from ..quantity import parse_bytes
from ..stores.store import BUFFER_BYTES, Body, CacheSetting, Store, clip
from ..stores.urls import scheme_of
from ..types import Buffer
from .copy import Copy, DamagedCopyError, read_stretches
from .fetch import Cache
from .folder import STRETCH_BYTES, Header


@dataclass(eq=False, repr=False)
class CachedStore:
    """A store whose shards are read from the network once, and from disk from then on.

    A read without a version opens the shard. It is answered from the cache if the shard is there; otherwise
    the whole shard is downloaded, and the read gets its bytes as they come. A read of a given version goes on
    with what was opened. Everything else comes from the network: a shard without an ETag or without room, and
    one that is opened in its middle (a resumed run), unless lanes share shards.

    A shard of another run is verified at its first use: its server is asked whether it was changed, and its
    digest is computed. If the server cannot be reached, the read raises its ``StoreError``. All bytes that
    are read from a file are compared with their checksums, each time. A damaged file is put into quarantine,
    and the bytes come from the network; the next read that opens the shard downloads it again.

    Args:
        remote: Answers what the cache cannot, and local files; its reads retry and resume.
        cache: Shared by all lanes of an engine.
        lane: The reading lane.
    """

    remote: Store
    cache: Cache
    lane: int

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        copy = None
        if not scheme_of(url).is_local:
            copy = await self.cache.copy_of(url, self.remote, self.lane, start, etag)
        header = None if copy is None else copy.header
        if copy is None or header is None or etag not in (None, header.etag) or start >= header.size:
            if copy is not None:
                copy.close()  # another version, or an offset that the server has to refuse
            async with self.remote.read(url, start, stop, etag=etag) as body:
                yield body
            return
        try:
            end = min(stop, header.size)
            async with aclosing(self._chunks(copy, header, url, start, end)) as chunks:
                yield Body(start, end, header.size, header.etag, chunks)
        finally:
            copy.close()

    async def _chunks(
        self, copy: Copy, header: Header, url: str, offset: int, end: int
    ) -> AsyncGenerator[Buffer, None]:
        while offset < end:
            if offset < copy.filled:
                # Up to the end of a stretch, so that the next piece begins with one.
                stop = min(offset - offset % STRETCH_BYTES + BUFFER_BYTES, end, copy.filled)
                try:
                    piece = await copy.file.run(read_stretches, copy.file.number, header, offset, stop)
                except DamagedCopyError:
                    await self.cache.put_aside(url, copy)
                    break
                except OSError as error:
                    self.cache.disk_failed(error)
                    break
                for chunk in piece:
                    yield chunk
                    offset += len(chunk)
            elif copy.growing:
                await copy.wait_change()
            else:
                copy.check()
                break
        if offset == end:
            return
        async with self.remote.read(url, offset, end, etag=header.etag) as body:
            at = body.start  # 0 if the server ignores ranges
            async for chunk in body.chunks:
                wanted = clip(chunk, offset - at, end - at)
                at += len(chunk)
                if wanted:
                    yield wanted
                if at >= end:
                    return
        # The reader above compares the bytes with what was promised.


# Some hundred shards of the usual few hundred megabytes. The floor of free space guards smaller disks.
DEFAULT_LIMIT_BYTES = 64 << 30


def cache_setting(
    cache_dir: str | os.PathLike[str] | None, cache_limit: int | str | None
) -> CacheSetting | None:
    """What ``from_urls(cache_dir=, cache_limit=)`` means; makes the cache's private folder.

    Args:
        cache_dir: Any folder of the user; made if it is missing. None keeps nothing on disk.
        cache_limit: Most bytes of shards kept in it, by all processes that use it. None for 64 GiB.

    Raises:
        TypeError: Something else than a path, and an int or a text.
        ValueError: A limit that is no number of bytes, is not positive or has no folder; a folder that
            cannot be made, or is not private; a platform without ``flock`` (the cache needs a Unix).
    """
    limit_bytes = DEFAULT_LIMIT_BYTES if cache_limit is None else parse_bytes("cache_limit", cache_limit)
    if limit_bytes <= 0:
        raise ValueError(f"cache_limit should be positive, but got cache_limit={cache_limit}")
    if cache_dir is None:
        if cache_limit is not None:
            raise ValueError("cache_limit is the limit of a cache; pass cache_dir too")
        return None
    if not isinstance(cache_dir, str | os.PathLike) or not isinstance(os.fspath(cache_dir), str):
        raise TypeError(f"cache_dir should be a path, but got cache_dir={cache_dir!r}")
    if sys.platform == "win32":
        raise ValueError("cache_dir needs flock, which Windows does not have; leave it out")
    if not os.fspath(cache_dir):
        raise ValueError("cache_dir should name a folder, but got an empty path")
    # Only here: it needs ``fcntl``.
    from .folder import CacheFolder

    path = os.path.abspath(os.path.expanduser(cache_dir))
    try:
        CacheFolder(path).close()
    except OSError as error:
        raise ValueError(f"cache_dir={path!r} cannot be used: {error.strerror}") from error
    return CacheSetting(path, limit_bytes, uuid.uuid4().hex)
