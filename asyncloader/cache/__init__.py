"""Whole shards on local disk: a store around a store, shared by all processes of the machine.

The door is ``store``: ``CachedStores`` goes around an engine's stores, and says what readers get. Behind it
``flow/`` is how shards come in and go out, and ``folder/`` what is on disk. Beside it ``setting`` checks the
options, and ``audit`` verifies what is there.
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
