"""Records and messages sent to browsers, as server-sent events or over WebSocket."""
