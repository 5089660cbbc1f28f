"""Workers that are Ray actors, on whatever node of a cluster has room for them.

Laws:

* A call of the actor's ``next`` brings credits, one for each batch that may be made: an actor makes only
  batches that were requested. A call returns several small batches together, and keeps none back for those
  behind it.
* A batch is written once, by the actor's process into its node's object store, and read there, or where Ray
  has copied it to. The receiver copies no tensor of it.
* Nothing polls: Ray calls back on a thread of its own when an answer has come, and that thread rings a bell,
  which is a descriptor.
* Actors live as long as the pass; if they are kept, they stay on the loader's bench until the next one.
  ``close`` kills the others, and releases what they were sent and have sent.
* Nothing here imports ray until a pass begins.
"""
