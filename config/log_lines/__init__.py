"""Bounds on what a program's log says: repetitions, changes back and forth, floods. For edge nodes, hubs and links."""
