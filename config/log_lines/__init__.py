"""Bounds on a program's log lines: repetitions, changes back and forth, floods. For edge nodes, hubs and links."""
