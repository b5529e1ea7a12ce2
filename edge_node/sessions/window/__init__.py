"""One client's window: what it is sent, in which state, and its answers."""
