"""Routing of messages to queues: exchanges, bindings, and remembered look-ups."""
