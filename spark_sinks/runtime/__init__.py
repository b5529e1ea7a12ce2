"""Spark sessions that suit Weft: Java, the workers' Python, settings, and waiting for a query."""
