"""Status, metrics and health of the node."""
