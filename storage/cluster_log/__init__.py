"""The cluster log: facts that belong to no edge, declared by operators, in one log beside those of the shards."""
