"""A shard's way in and out, on the loop: ``cache`` is asked for a copy, and ``intake`` brings what lacks.

What is not there comes by a ``download``, or by reading along (``follow``) with another process's.
"""
