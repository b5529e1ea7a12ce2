"""Codecs and state machines. No I/O, no clock, no randomness: callers pass these as arguments."""
