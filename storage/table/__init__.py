"""Rows and columns of the tables that a stream becomes."""
