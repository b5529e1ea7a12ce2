"""The hub's tables made by Spark: executors write the files, and the driver commits them as a hub node does."""
