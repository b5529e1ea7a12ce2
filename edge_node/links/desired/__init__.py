"""Configurations that a hub wants: kept in the data directory, tried, and confirmed or taken back."""
