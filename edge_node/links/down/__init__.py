"""Messages from hubs: taken from links, stored, and published to the node's clients."""
