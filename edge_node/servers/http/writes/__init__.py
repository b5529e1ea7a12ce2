"""Messages in requests."""
