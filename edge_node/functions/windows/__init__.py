"""Windows over rows: the rows of each, the time at which it closes, and its results."""
