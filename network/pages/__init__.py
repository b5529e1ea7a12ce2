"""Shared parts of pages for people: files that a browser loads, and their headers."""
