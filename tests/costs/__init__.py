"""What the tests cost: processor time and waits, by file and by cause, measured, kept and held to a budget."""
