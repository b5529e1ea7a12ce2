"""``weft spark``: pipelines of Spark."""
