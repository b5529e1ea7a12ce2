"""Completeness in Spark: lanes, the moment up to which a stream is complete, windows with a column ``_complete``."""
