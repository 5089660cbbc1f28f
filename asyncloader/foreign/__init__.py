"""Data sets that other libraries have written: a folder of shards, and an index that says what they are.

``folder`` reads the index and names the shards, the others make recipes of what they find.
"""
