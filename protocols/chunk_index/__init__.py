"""Index of a chunk: its values, and the bytes of both of its forms."""
