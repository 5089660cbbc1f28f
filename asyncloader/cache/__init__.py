"""Whole shards on local disk: a store around a store, shared by all processes of the machine.

``store`` wraps the stores of an engine and checks the options. ``fetch``, ``waiting`` and ``copy`` bring
shards in and read them, ``folder`` and ``locks`` are the files on disk, and ``upkeep`` lists, prunes and
verifies them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .upkeep import verify_cache

__all__ = ["verify_cache"]


def __getattr__(name: str) -> Any:
    if name == "verify_cache":  # on demand: all rooms below import this package
        from .upkeep import verify_cache

        return verify_cache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
