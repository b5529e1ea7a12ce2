"""Clocks and timers: the only place of the node that reads the time."""
