"""Parts that connections of every protocol share: turns, writes, connection counts."""
