"""The hub's HTTP API."""
