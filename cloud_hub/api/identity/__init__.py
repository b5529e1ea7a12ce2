"""Those who ask a hub: what they may do, and certificates beside tokens."""
