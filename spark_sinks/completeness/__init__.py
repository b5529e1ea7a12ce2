"""Completeness in Spark: lanes, the moment up to which a stream is complete, windows that know they are complete."""
