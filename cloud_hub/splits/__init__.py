"""Splits of shards, and the making of what belongs to a shard while new ones come."""
