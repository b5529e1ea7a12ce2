"""Checks before a hub starts: of its configuration, and of its machine."""
