"""Completeness in Spark: lanes as a DataFrame, and windows that are emitted because they are complete."""
