"""Requests of the API by HTTP: what the operations say of their parameters is checked before a handler runs."""
