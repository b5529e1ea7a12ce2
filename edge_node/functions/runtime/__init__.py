"""The runtime of edge functions: reads the log, runs chains, and writes whole steps."""
