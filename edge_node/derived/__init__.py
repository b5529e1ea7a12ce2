"""Derived streams of a node: their functions, joined to its log, its links and its subscribers."""
