"""Spark over a stream. Each module with a ``figures`` function is a case; ``__main__`` lists them."""
