"""AMQP 1.0: its types, its messages, and the bytes before the engine, which is Proton's."""
