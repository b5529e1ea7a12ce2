"""Sizes that follow from the disk budget where a configuration omits them."""

from __future__ import annotations

from weft.config.models import EdgeConfig

TOPICS_LOG_SHARE = 4
"""Divisor of the disk budget: the share by which the log may grow before messages kept for absent sessions are
deleted."""
TOPICS_LOG_BYTES = 1 << 30
SEGMENT_BYTES = 64 << 20
SEGMENT_SHARE = 8
"""Divisor of the disk budget: the share of a segment, where 64 MiB would be more."""
UNROUTED_BYTES = 64 << 20
UNROUTED_SHARE = 16
"""Divisor of the disk budget: the share of the stream `unrouted`, where 64 MiB would be more."""
SEGMENTS_MIN = 4
"""Minimum number of segments in the disk budget: space is freed a whole segment at a time."""


def segment_bytes(config: EdgeConfig) -> int:
    """Return ``disk.segment``, or its default for the budget."""
    return config.disk.segment_bytes or min(SEGMENT_BYTES, config.disk.budget_bytes // SEGMENT_SHARE)


def unrouted_bytes(config: EdgeConfig) -> int:
    """Return ``unrouted.size``, or its default for the budget."""
    return config.unrouted.size_bytes or errors_bytes(config)


def topics_log_bytes(config: EdgeConfig) -> int:
    """Return ``state.topics_log``, at most a quarter of the disk budget: with more, an absent session would keep the
    log full before its messages may be deleted."""
    return min(config.state.topics_log_bytes or TOPICS_LOG_BYTES, config.disk.budget_bytes // TOPICS_LOG_SHARE)


def errors_bytes(config: EdgeConfig) -> int:
    """Return the disk space of a stream of errors that is not configured: the default of `unrouted`."""
    return min(UNROUTED_BYTES, config.disk.budget_bytes // UNROUTED_SHARE)
