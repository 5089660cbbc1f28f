"""What a user is told of a cache that does not do its work; each thing once, since reading goes on."""

from __future__ import annotations

import warnings

from ...stores.urls import redact

__all__ = ["Complaints"]


class Complaints:
    """Warns, and remembers of what."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def not_kept(self, reason: Exception) -> None:
        """A shard cannot be kept."""
        self._tell(f"reading without the disk cache where a shard cannot be kept: {reason}")

    def disk_failed(self, error: OSError) -> None:
        """The disk does not take or give what it should."""
        self._tell(f"reading without the disk cache where it fails: {error.strerror or type(error).__name__}")

    def cannot_follow(self, error: OSError) -> None:
        """Another process's download cannot be watched."""
        self._tell(
            "reading without the disk cache what another process is just downloading, since its file cannot "
            f"be watched: {error.strerror} (see fs.inotify.max_user_instances)"
        )

    def bad_file(self, url: str, name: str) -> None:
        """A file was not what was put there."""
        self._tell(
            f"the disk cache held a damaged copy of {redact(url)}; it is now {name!r}, and the shard is "
            "downloaded again. If this happens often, check the disk",
            always=True,
        )

    def _tell(self, message: str, *, always: bool = False) -> None:
        if always or message not in self._told:
            self._told.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=3)
