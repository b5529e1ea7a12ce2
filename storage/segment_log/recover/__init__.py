"""Opening a log, and repairing what a crash left."""
