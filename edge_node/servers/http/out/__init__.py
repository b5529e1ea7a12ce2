"""Records and messages that go out to browsers, as server-sent events or over WebSocket."""
