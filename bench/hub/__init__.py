"""The hub under a fleet: links that speak the real protocol, and what they cost it."""
