"""A pair: two nodes, each the other's second disk."""
