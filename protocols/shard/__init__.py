"""State of one shard of a hub: lanes, origins, placement, and how all of it is written down."""
