"""Giving up a backlog by an operator's word, on a node that is stopped (``weft log drop``)."""

from __future__ import annotations

import random
from collections.abc import Callable

from config.models import EdgeConfig
from edge_node.clock import clock_reader, wall_clock
from edge_node.node import log_settings
from protocols.ranges import RangeSet
from storage.segment_log import SegmentLog


class UnknownStream(ValueError):
    """The log has no such stream."""


def give_up(config: EdgeConfig, stream: str, first: int = 0, end: int | None = None) -> RangeSet:
    """Give up records of a stream that no hub is known to have; durable when this returns.

    A stopped node does not know what hubs have: they say so when the links connect again, and take the notices only for
    what they lack. On a running node it is ``SegmentLog.give_up``.

    Args:
        first: the first number to give up; batches go as a whole.
        end: one past the last; None for all that there is.

    Returns:
        What was given up.

    Raises:
        UnknownStream: the log has no stream of that name.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened or written; the sentence says why.
    """

    def post(deliver: Callable[[], None]) -> None:
        deliver()

    log = SegmentLog.open(
        config.data_dir,
        log_settings(config),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.SystemRandom().getrandbits,
        post=post,
        start_writer=False,
    )
    try:
        if stream not in log.streams():
            raise UnknownStream(f"the log has no stream {stream}; it has {', '.join(sorted(log.streams())) or 'none'}")
        numbers = log.give_up(log.streams()[stream], first, end)
        while log.committer.run_once():
            pass
        if log.failed is not None:
            raise log.failed
        return numbers
    finally:
        log.close()
