"""The clients of stores that lanes share."""

from __future__ import annotations

from ..cache.store import CachedStores
from ..ops.op import Lane
from ..stores.access import Access
from ..stores.router import Stores

__all__ = ["stores_of"]


def stores_of(access: Access, lane: Lane, *, shares: bool) -> Stores | CachedStores:
    """One set of clients for all lanes of an engine.

    Args:
        access: How shards are reached.
        lane: One of them.
        shares: Whether several lanes read parts of one shard.
    """
    stores: Stores | CachedStores | None = lane.shared.get(id(access))
    if stores is None:
        stores = lane.shared[id(access)] = _open(access, lane, shares)
    return stores


def _open(access: Access, lane: Lane, shares: bool) -> Stores | CachedStores:
    engine = lane.engine
    stores = Stores(engine.resources, access, lane.network, lane.traffic)
    if access.cache is None:
        return stores
    cache, resources = access.cache, engine.resources
    return CachedStores(stores, access, cache, resources, engine.submit, lane.network, shares=shares)
