"""State of queues in the log: what there is, what was settled, and how a start puts it together again."""
