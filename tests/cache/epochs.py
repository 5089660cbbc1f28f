"""One pass over shards through the disk cache: in this process, or as a program in another one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from asyncloader.cache.fetch import Cache
from asyncloader.cache.store import CachedStore
from asyncloader.flow.budget import Budget, claim_alone
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.flow.engine import Engine
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.reading import read_shards
from asyncloader.stores.store import Access, Body, CacheSetting, NetworkPolicy, Store

__all__ = ["Epoch", "begin", "read_epoch", "start_program"]


class Epoch:
    """An engine that reads shards through the cache; received from in the test's thread."""

    def __init__(
        self,
        setting: CacheSetting,
        urls: Sequence[str],
        *,
        stall_s: float = 15.0,
        begin: int = 0,
        digests: Mapping[str, bytes] | None = None,
    ) -> None:
        self.engine = Engine()
        self.out = Channel[Any](1)
        self._setting, self._urls, self._begin = setting, urls, begin
        self._network = NetworkPolicy(stall_s=stall_s)
        self._digests = digests
        self._store: Store | None = None
        self._opening = asyncio.Lock()

    def __enter__(self) -> Epoch:
        self.engine.start()
        shards = [(url, self._begin) for url in self._urls]
        access, budget = Access(network=self._network, cache=self._setting), Budget(128 << 20, [0])
        cache = Cache(access, self.engine, NetworkCounts(), budget)
        store = CachedStore(self, cache, 0)
        self.engine.submit(partial(read_shards, store, shards, claim_alone(64 << 20), self.out), self.out)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        async with self._opening:
            if self._store is None:
                http: Store = await self.engine.resources.enter_async_context(HttpStore.open())
                self._store = http if self._digests is None else _Promising(http, self._digests)
        async with self._store.read(url, start, stop, etag=etag) as body:
            yield body

    def next_shard(self) -> bytes:
        chunks, content = self.out.receive(20), bytearray()
        try:
            while True:
                content += chunks.receive(20)
        except EndOfChannel:
            return bytes(content)

    def all_shards(self) -> list[bytes]:
        contents = []
        try:
            while True:
                contents.append(self.next_shard())
        except EndOfChannel:
            return contents


class _Promising:
    """A store that promises digests, as object stores do."""

    def __init__(self, remote: Store, digests: Mapping[str, bytes]) -> None:
        self._remote, self._digests = remote, digests

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        async with self._remote.read(url, start, stop, etag=etag) as body:
            body.digests = self._digests
            yield body


def read_epoch(setting: CacheSetting, urls: Sequence[str], **kwargs: Any) -> list[bytes]:
    """Every shard, whole."""
    with Epoch(setting, urls, **kwargs) as epoch:
        return epoch.all_shards()


def start_program(
    setting: CacheSetting,
    urls: Sequence[str],
    *,
    stall_s: float = 15.0,
    longest_file: int | None = None,
    forever: bool = False,
) -> subprocess.Popen[str]:
    """A program that reads an epoch in a new process for each line it is given.

    The process prints its id, then the sha256 of each shard as it comes, then ``end`` however it ended. (New
    processes are forked from one that has imported everything, and has neither thread nor loop.)

    Args:
        forever: Each process reads one epoch after the other.
        longest_file: The kernel lets these processes write no file that is longer.
    """
    asked = {
        "setting": [setting.folder, setting.limit_bytes, setting.run],
        "urls": list(urls),
        "stall_s": stall_s,
        "longest_file": longest_file,
        "forever": forever,
    }
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )


def begin(programs: Iterable[subprocess.Popen[str]]) -> None:
    """Let each read an epoch."""
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()


def _serve(asked: Mapping[str, Any]) -> None:
    if asked["longest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["longest_file"],) * 2)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _read(asked)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        _tell("end")


def _tell(line: str) -> None:
    # In one write: a process killed in ``print`` may leave half a line.
    os.write(1, f"{line}\n".encode())


def _read(asked: Mapping[str, Any]) -> None:
    _tell(str(os.getpid()))
    while True:
        with Epoch(CacheSetting(*asked["setting"]), asked["urls"], stall_s=asked["stall_s"]) as epoch:
            for _ in asked["urls"]:
                _tell(hashlib.sha256(epoch.next_shard()).hexdigest())
        if not asked["forever"]:
            return


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
