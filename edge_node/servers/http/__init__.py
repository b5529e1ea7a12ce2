"""HTTP listeners: messages in by POST and InfluxDB's line protocol, and out by server-sent events and WebSocket."""
