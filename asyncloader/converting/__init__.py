"""Shards of another form, from whatever has samples: other shards, or a folder of files.

Laws:

* What goes into which shard is a function of sources and options alone (``plan``), and the same samples make
  the same bytes: any number of processes, and of runs that were killed, leave the same files.
* A shard is there when it is whole, and noted when it is there (``job``). Who calls again goes on with what
  is not noted; whoever calls otherwise hears it before anything is touched.
* As many samples come out as there are, or an error. What a format cannot keep is refused.
"""
