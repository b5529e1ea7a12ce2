"""Exchanges, queues and bindings, which belong to no protocol."""
