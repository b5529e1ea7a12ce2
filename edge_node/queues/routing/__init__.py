"""Where messages go: exchanges, bindings, and the queues at the end."""
