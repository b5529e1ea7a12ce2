"""Presence in a store: entries of hub processes and of makers of tables, written again and again."""
