"""What the log has in memory: shared by the owner's thread, the writer thread and readers."""
