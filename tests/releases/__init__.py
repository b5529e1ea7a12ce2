"""Releases: what an earlier one wrote is opened, and what a later one wrote is refused before anything is written."""
