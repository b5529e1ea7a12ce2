"""Rows and columns of a stream's table."""
