"""Messages from the hub to edges: a lane for each edge, in the shard of its records."""
