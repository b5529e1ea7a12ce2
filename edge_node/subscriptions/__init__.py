"""Subscriptions: which client gets which message."""
