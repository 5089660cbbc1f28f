"""The footers of shards, kept from epoch to epoch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

__all__ = ["FooterCache"]

# Of some 3,000 shards with 20 KiB each, which is usual. Those least lately used go first.
_MOST_BYTES = 64 << 20

_Key = tuple[str, str, int]


class FooterCache:
    """Footers by URL, version and length; of each shard the last version. Empty in another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # plans run on several threads
        self._footers: OrderedDict[_Key, bytes] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> Any:
        return FooterCache, ()

    def of(self, url: str) -> ShardFooters:
        """Those of one shard."""
        return ShardFooters(self, url)

    def find(self, key: _Key) -> bytes | None:
        """The footer, if it is kept."""
        with self._lock:
            footer = self._footers.get(key)
            if footer is not None:
                self._footers.move_to_end(key)
            return footer

    def keep(self, key: _Key, footer: bytes) -> None:
        """Keep it, in place of what was used longest ago."""
        with self._lock:
            self._bytes += len(footer) - len(self._footers.pop(key, b""))
            self._footers[key] = footer
            while self._bytes > _MOST_BYTES:
                _, oldest = self._footers.popitem(last=False)
                self._bytes -= len(oldest)


@dataclass(frozen=True, slots=True)
class ShardFooters:
    """Those of one shard; see ``formats.columnar.footers``."""

    cache: FooterCache
    url: str

    def find(self, version: str, length: int) -> bytes | None:
        return self.cache.find((self.url, version, length))

    def keep(self, version: str, length: int, footer: bytes) -> None:
        self.cache.keep((self.url, version, length), footer)
