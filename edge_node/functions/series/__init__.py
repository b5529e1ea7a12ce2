"""Series of rows: what tells them apart, what is remembered of each, and how far numbers may be off."""
