"""One queue: its messages, their order and its readers."""
