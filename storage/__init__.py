"""Bytes at rest: the edge's segment log, the hub's object stores and chunk log, and the one door to the disk."""
