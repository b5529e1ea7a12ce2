"""Configurations of edges: told over links, reported, and rolled out in steps."""
