"""The hub's side of links."""
