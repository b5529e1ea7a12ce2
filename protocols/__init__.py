"""Bytes to values, and state machines. No I/O, no clock, no randomness: those come in as arguments."""
