"""The metric catalogue: every metric that a node exports, with its kind and meaning. Names contain the unit.

Counters start at 0 with the process; Prometheus handles the reset.

A node imports its own list alone.
"""
