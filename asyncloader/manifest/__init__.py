"""What a folder's shards should be: length, digests and number of samples, in a file beside them.

``python -m asyncloader.manifest`` makes that file for existing shards, and checks them against it.
"""
