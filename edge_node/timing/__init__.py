"""Clocks and timers: the one place of the node that knows what time it is."""
