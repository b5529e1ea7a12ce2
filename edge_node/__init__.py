"""The edge node: accept, append, acknowledge, link. ``node.py`` assembles the parts."""
