"""Requests of an operator to a running node."""
