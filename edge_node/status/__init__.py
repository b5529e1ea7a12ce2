"""What the node tells about itself: status, metrics, health."""
