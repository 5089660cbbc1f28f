"""The cache's two options, checked before any reading."""

from __future__ import annotations

import os
import sys
import uuid

from ..quantity import parse_bytes
from ..stores.access import CacheSetting

__all__ = ["DEFAULT_LIMIT_BYTES", "cache_setting"]

# Some hundred shards of the usual few hundred megabytes. The floor of free space guards smaller disks.
DEFAULT_LIMIT_BYTES = 64 << 30


def cache_setting(
    cache_dir: str | os.PathLike[str] | None, cache_limit: int | str | None
) -> CacheSetting | None:
    """What ``from_urls(cache_dir=, cache_limit=)`` means; makes the cache's private folder.

    Args:
        cache_dir: Any folder of the user's; made if it is not there. None keeps nothing on disk.
        cache_limit: Most bytes of shards kept in it, by all processes that use it. None for 64 GiB.

    Raises:
        TypeError: Something else than a path, and an int or a text.
        ValueError: A limit that is no number of bytes, is not positive or has no folder; a folder that
            cannot be made, or is not private; a platform without ``flock`` (the cache needs Linux, or another
            Unix).
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
    from .folder.layout import Folder

    path = os.path.abspath(os.path.expanduser(cache_dir))
    try:
        Folder(path).close()
    except OSError as error:
        raise ValueError(f"cache_dir={path!r} cannot be used: {error.strerror}") from error
    return CacheSetting(path, limit_bytes, uuid.uuid4().hex)
