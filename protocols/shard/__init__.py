"""State of one shard of a hub: lanes, origins, placement, and their encoding."""
