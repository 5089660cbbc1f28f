"""Shards of another format or size, made of other shards or of a folder of files.

Laws:

* Which sample goes where is a function of the sources and the options. Any number of processes writes the
  same bytes, and so does a run that goes on where another was killed.
* A file with a shard's name is whole. Beside the shards is noted what they were made of and how; a call with
  other options or sources is refused before anything is touched.
* A value is kept or refused, never changed unnoticed.
"""
