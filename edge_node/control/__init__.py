"""Orders to a running node."""
