"""A node's log, read and changed by another process. The running node imports none of it."""
