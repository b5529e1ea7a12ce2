"""The edge node: accept, append, acknowledge, link. ``node.py`` puts the parts together."""
