"""Records that a hub asks for: windows of streams that no link carries."""
