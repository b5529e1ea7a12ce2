"""MQTT clients: from the bytes of a connection to packets, and back."""
