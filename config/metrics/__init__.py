"""The metric catalogue: every metric that a node exports, with its kind and meaning. Names contain the unit.

Counters start at 0 with the process; Prometheus handles the reset.
"""

from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.hub import HUB_METRICS
from weft.config.metrics.metric import PROCESS_METRICS, Metric

__all__ = ["EDGE_METRICS", "HUB_METRICS", "PROCESS_METRICS", "Metric"]
