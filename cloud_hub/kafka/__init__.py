"""Kafka's protocol at the hub: streams as topics, shards as partitions (docs/how-to/read-by-kafka.md)."""
