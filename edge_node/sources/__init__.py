"""Brokers that people already run, from which the node takes messages: acknowledged to them after the fsync."""
