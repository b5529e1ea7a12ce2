"""MQTT sessions: the node's state of a client, and the messages still to be delivered to it."""
