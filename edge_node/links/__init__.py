"""The node's links to hubs."""
