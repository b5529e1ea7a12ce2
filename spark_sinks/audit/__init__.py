"""The audit as a Spark job: lanes, log and table compared by many tasks."""
