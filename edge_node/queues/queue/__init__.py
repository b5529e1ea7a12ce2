"""One queue: what is in it, in which order, and who takes it."""
