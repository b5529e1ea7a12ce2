"""The hub's processes on all hosts: who is there, and which of them serves which shards."""
