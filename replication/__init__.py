"""Replication of ranges of a log: link machines without I/O, and the shell that drives them."""
