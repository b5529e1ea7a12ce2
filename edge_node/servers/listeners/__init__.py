"""Listeners for MQTT clients: sockets, TLS, WebSocket, proxies, and bounds on the number of connections."""
