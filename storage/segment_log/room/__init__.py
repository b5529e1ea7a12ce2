"""Disk room: budget, eviction, retention."""
