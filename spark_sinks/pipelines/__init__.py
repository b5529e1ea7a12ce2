"""Pipelines: YAML with SQL and Python steps, checked before they start, and the ones that are shipped."""
