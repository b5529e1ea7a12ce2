"""A start waits for the first answer of its hubs, and for none longer than its link says."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from weft.config.links import Link
from weft.edge_node.links.links import compared
from weft.replication.events import LinkStatus

LINK = Link(to=("http://127.0.0.1:9",), hold_at_start_s=10.0)


def seconds() -> itertools.count[float]:
    """A clock on which each look takes a second."""
    return itertools.count(0.0, 1.0)


async def test_a_node_without_network_takes_messages_after_the_time_that_a_setting_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, links = seconds(), {"near": LINK, "far": LINK}
    statuses = [LinkStatus("near", is_compared=True), LinkStatus("far"), LinkStatus("of no interest")]
    await compared(links, statuses, clock=lambda: next(clock))
    assert 10 <= next(clock) < 13
    reported, ended = [record.getMessage() for record in caplog.records]
    assert "link far has reported what it holds of this log, at most 10 seconds (hold_at_start)" in reported
    assert "without the hub's report on this log: no answer on link far" in ended


@pytest.mark.parametrize(
    ("status", "is_stopping"),
    [
        (LinkStatus("cloud", is_compared=True), False),
        (LinkStatus("cloud", conflict="a copy"), False),
        (LinkStatus("cloud"), True),
    ],
)
async def test_it_waits_no_longer_than_it_has_to(
    status: LinkStatus, *, is_stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stopping = seconds(), asyncio.Event()
    if is_stopping:
        stopping.set()
    await compared({"cloud": LINK}, [status], stopping, clock=lambda: next(clock))
    assert next(clock) < 3
    assert not caplog.records
