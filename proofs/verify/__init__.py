"""The verification of a hub's store, or of a backup of one: whether it is whole, and what it lacks."""
