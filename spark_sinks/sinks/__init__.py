"""Sinks: Delta tables, streams, and databases of others, with what each promises."""
