"""The way of messages to queues: exchanges, bindings, and what is remembered of them."""
