"""Shards of MosaicML's ``streaming``: MDS, version 2.

Behind the table of each shard (``formats.offsets``) is JSON that says which columns there are and how their
values are encoded. ``config`` reads it, ``encodings`` has a row for each encoding, ``arrays`` and ``images``
those that take more than a line; ``index`` is the file beside the shards. What is decoded is what
``streaming`` 0.13 decodes, by its source and its output; pickles are not read.
"""
