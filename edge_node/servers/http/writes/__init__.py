"""Messages that come in requests."""
