"""Commands of ``weft edge`` beside the node itself: inspect its log, rename it, import an earlier disk."""
