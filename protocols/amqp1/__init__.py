"""AMQP 1.0: its types, its messages, and the bytes before its engine takes over. The engine itself is Proton's."""
