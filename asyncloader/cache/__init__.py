"""Whole shards on local disk: a store around a store, shared by all processes of the machine.

See ``store`` for what readers get, ``bringing`` for how shards come, ``folder`` for what is on disk, and
``room`` for what goes.
"""
