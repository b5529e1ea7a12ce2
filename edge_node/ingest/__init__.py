"""The path into the log, for every protocol."""
