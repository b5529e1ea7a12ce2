"""Subscriptions: the clients that get each message."""
