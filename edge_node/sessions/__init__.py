"""MQTT sessions: what the node remembers of a client, and what it still has to deliver."""
