"""Traces: from a row of a table back to the records of devices that went into it."""
