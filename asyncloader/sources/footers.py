"""The footers of shards, kept from epoch to epoch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

__all__ = ["FooterCache"]

# Of some 3,000 shards with 20 KiB each, which is usual. Those least lately used go first.
_MOST_BYTES = 64 << 20

_Version = tuple[str, int]


class FooterCache:
    """Footers by URL, of each shard that of the last version and length. Empty in another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # plans run on several threads
        self._footers: OrderedDict[str, tuple[_Version, bytes]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> Any:
        return FooterCache, ()

    def of(self, url: str) -> ShardFooters:
        """Those of one shard."""
        return ShardFooters(self, url)

    def find(self, url: str, version: _Version) -> bytes | None:
        """The footer, if it is kept."""
        with self._lock:
            kept = self._footers.get(url)
            if kept is None or kept[0] != version:
                return None
            self._footers.move_to_end(url)
            return kept[1]

    def keep(self, url: str, version: _Version, footer: bytes) -> None:
        """Keep it, in place of that of another version, and of what was used longest ago."""
        with self._lock:
            if url in self._footers:
                self._bytes -= len(self._footers.pop(url)[1])
            self._footers[url] = version, footer
            self._bytes += len(footer)
            while self._bytes > _MOST_BYTES:
                _, (_, oldest) = self._footers.popitem(last=False)
                self._bytes -= len(oldest)


@dataclass(frozen=True, slots=True)
class ShardFooters:
    """Those of one shard; see ``formats.columnar.footers``."""

    cache: FooterCache
    url: str

    def find(self, version: str, length: int) -> bytes | None:
        return self.cache.find(self.url, (version, length))

    def keep(self, version: str, length: int, footer: bytes) -> None:
        self.cache.keep(self.url, (version, length), footer)
