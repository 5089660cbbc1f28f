"""Write shards: samples in, finished files with their index out."""

from .shard_writer import ShardWriter, WrittenShard

__all__ = ["ShardWriter", "WrittenShard"]
