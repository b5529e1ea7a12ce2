"""Check of a pipeline before it starts: Spark's own analysis over no rows, and a look at store, sink and checkpoint."""
