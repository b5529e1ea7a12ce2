"""Rows back into a Weft stream, over the link protocol that edges speak."""
