"""State of queues in the log: declarations and settlements, and how a start restores them."""
