"""Shards of NumPy: ``.npy``, an array, and ``.npz``, several of them in a zip archive; rows are samples.

``header`` is what an array says of itself, ``archive`` where the members of a zip are, ``npy`` and ``npz``
plan what to read, ``contents`` takes the bytes as they come, and ``rows`` makes columns of them.
"""
