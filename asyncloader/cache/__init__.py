"""Whole shards on local disk: a store around a store, shared by all processes of the machine.

The door is ``store``: ``CachedStores`` goes around an engine's stores, and says what readers get. Behind it
``flow/`` is how shards come in and go out, and ``folder/`` what is on disk. Beside it ``setting`` checks the
options, and ``audit`` verifies what is there.
"""
