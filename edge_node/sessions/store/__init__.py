"""State of the broker across restarts: retained messages, sessions, and the log read again for absent clients."""
