"""Settings of a pipeline of Spark: a stream of the log, steps of SQL and Python, and a sink."""
