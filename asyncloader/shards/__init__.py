"""Which shards there are, and what they should be: names, the index, and writing."""
