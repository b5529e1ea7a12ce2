"""Walking over the entries of a segment file."""
