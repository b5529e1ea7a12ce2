"""The log as one Delta table per stream, with each record exactly once. Hub nodes and Spark run it.

``service`` runs it for all streams; ``tiering`` moves rows of one stream; ``maintenance`` keeps its table small.
"""

from __future__ import annotations
