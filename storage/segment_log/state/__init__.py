"""State of the log in memory: shared by the owner's thread, the writer thread and readers."""
