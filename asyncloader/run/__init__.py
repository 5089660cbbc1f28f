"""One pass over a streaming recipe, from its processes and threads to the consumer's next batch.

``thread.py`` and ``workers.py`` say where its lanes are read, ``run.py`` hands its batches on.

Laws:

* Whatever is started for a pass is freed by ``close``, which is called at the end, at an error, and by
  a finalizer when the consumer lets go; threads and workers hold no reference to the consumer's side.
* The cursor moves when a batch is delivered, and never before.
"""
