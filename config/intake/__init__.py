"""Sections of an edge node that bring records in: listeners, sources of other brokers, and queues."""
