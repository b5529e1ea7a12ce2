"""One client's window: its deliveries, their states and its answers."""
