"""Readers of the objects of a shard's log."""
