"""Attempts of a link to connect, without I/O: the next URL, the wait, the epoch, and the outcome."""
