"""A full log is reported when it begins, now and then, and when it is over; one that flaps fills no disk."""

from __future__ import annotations

import pytest

from weft.edge_node.status.facts import ShortageLog

FULL = "the log uses 16 MiB of 16 MiB: restore the link to the hub"


def test_it_begins_goes_on_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(7200):
        log.full(FULL if 100 <= now < 7000 else None, now)
    first, *others, last = caplog.messages
    assert first == f"devices get no acknowledgements: {FULL}"
    assert 3 <= len(others) <= 8
    assert others[0] == f"devices get no acknowledgements, for 60 seconds now: {FULL}"
    assert last == "the log has room again: devices are acknowledged, after 115.0 minutes"


def test_a_log_with_room_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(600):
        log.full(None, now)
        log.low(None, now)
    assert caplog.messages == []


def test_a_log_that_is_full_every_other_second_is_some_lines_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(3601):
        log.full(None if now % 2 else FULL, now)
        log.low(None if now % 2 else "3 MiB are left", now)
    log.full(None, 3602)
    assert len(caplog.messages) < 40
    assert caplog.messages[0] == f"devices get no acknowledgements: {FULL}"
    full = [line for line in caplog.messages if "left" not in line]
    assert "has room again" in full[-1]
