"""An edge's configuration against this machine: what keeps the node from starting or from its work, and a doctor that
also measures and calls."""

from weft.edge_node.preflight.findings import EdgeFindings, look, ports

__all__ = ["EdgeFindings", "look", "ports"]
