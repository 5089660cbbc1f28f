"""What a folder's shards should be: length, digests and number of samples, in a file beside them.

``asyncloader index`` makes that file for existing shards, ``asyncloader verify`` checks them against it.
"""
