"""Who reads what, in which order: pure functions of (shards, seed, epoch, topology).

Laws: no I/O, no clock, no ``await``; memory grows with shards, never with samples.
"""
