"""Series of rows: their identity, their state, and bounds on numbers."""
