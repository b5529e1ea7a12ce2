"""Backups of a hub's store: a copy in another store that is consistent at a chunk of each shard."""
