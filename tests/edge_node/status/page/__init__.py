"""Messages on the node's page."""
