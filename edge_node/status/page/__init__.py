"""Messages on the node's page: the newest of each topic, and live ones."""
