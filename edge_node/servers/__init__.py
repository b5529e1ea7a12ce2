"""Listeners of the node and their protocols: connections, from their bytes to records and back."""
