"""External brokers whose messages the node stores, and acknowledges after the fsync."""
