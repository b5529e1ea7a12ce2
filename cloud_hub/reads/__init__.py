"""Reads of the hub: what it knows of streams, edges, records and rows, for its API, pages and metrics."""
