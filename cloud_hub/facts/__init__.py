"""Declared facts of the cluster log: for each kind of fact its document, its decisions, and what a process
knows of it."""
