"""The words of ``weft link status`` about the canary."""

from __future__ import annotations

from typing import Any

import pytest

from weft.commands.link import _facts

NOW = 1_800_000_000.0
IDLE: dict[str, Any] = {
    "state": "connected",
    "url": "http://hub",
    "connected_since": NOW - 9000,
    "hold": "",
    "pending_records": 0,
    "delivery_seconds": None,
    "ping_seconds": 0.02,
    "budget_bytes": None,
    "next_try": None,
    "last_error": "",
    "alarm": "",
    "pull": None,
    "canary": "unknown",
    "canary_seconds": None,
    "canary_time": None,
    "canary_alarm": "",
}
PROVEN = {"canary": "proven", "canary_seconds": 0.084, "canary_time": NOW - 180, "canary_alarm": ""}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "84 ms to the hub's store and back, sent 3.0 minutes ago"),
        (
            {"canary_seconds": None, "canary_time": None, "canary": "unknown"},
            "unknown: the hub has not confirmed a write to its store yet",
        ),
        (
            {"canary": "unknown"},
            "unknown now, this hub's release reports nothing without data; the last one took 84 ms to the hub's "
            "store and back, sent 3.0 minutes ago",
        ),
        (
            {"canary": "unknown", "connected_since": None},
            "unknown now, not connected; the last one took 84 ms to the hub's store and back, sent 3.0 minutes ago",
        ),
        ({"canary": "overdue", "canary_alarm": "the hub answers"}, "OVERDUE: the hub answers"),
    ],
)
def test_the_canary_says_what_is_known(change: dict[str, Any], text: str) -> None:
    assert _facts({**IDLE, **PROVEN, **change}, NOW)["canary"] == text
