"""Reads through the hub's API, with a token of the tenant instead of a key of the store."""
