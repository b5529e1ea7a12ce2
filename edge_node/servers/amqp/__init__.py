"""AMQP 0-9-1 clients: from the bytes of a connection to channels, and from channels to records and queues."""
