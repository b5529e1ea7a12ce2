"""The way into the log, for every protocol."""
