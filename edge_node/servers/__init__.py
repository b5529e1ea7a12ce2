"""Listeners of the node and the protocols spoken there: connections, from their bytes to records and back."""
