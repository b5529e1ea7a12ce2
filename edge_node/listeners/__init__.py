"""Where MQTT clients connect: sockets, TLS, WebSocket, proxies, and how many of them there may be."""
