"""Orders to a running node: another configuration, and those of its own command line."""
