"""Workers that are Ray actors, on whatever node of a cluster has room for them.

Laws:

* A call of the actor's ``next`` is a credit: an actor makes no batch that it was not asked for, and as many
  calls are under way as there may be batches ahead.
* A batch is written once, by the actor's process into its node's object store, and read there, or where Ray
  has brought it. No tensor of it is copied by whoever receives it.
* Nothing polls: Ray tells on a thread of its own that an answer has come, and that thread rings a bell, which
  is a descriptor.
* Actors live as long as the pass; if they are to be kept, the loader's bench has them until the next one.
  ``close`` kills the others, and lets go of what they were sent and have sent.
* Nothing here imports ray until a pass begins.
"""

from __future__ import annotations

from .options import RayWorkers, count_workers

__all__ = ["RayWorkers", "count_workers"]
