"""The part of a broker that belongs to no protocol: subscriptions, sessions and the log, put together, and turns."""
