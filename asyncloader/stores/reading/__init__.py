"""Shards read ahead in parts, in order.

``lookahead`` decides which part comes next, ``fetching`` brings one part, ``reader`` hands them on.
"""
