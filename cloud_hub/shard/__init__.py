"""One shard's log: sessions of lanes, chunks, snapshots."""
