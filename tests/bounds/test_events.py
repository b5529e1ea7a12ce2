"""Structured lines about refusals: who, what and how often, and never a flood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.bounds import Events, Owner, OwnerKind, SecurityEvent, Severity
from weft.bounds.bound import INTERVAL_S, KEYS_MAX, LINES_MAX

MIRA = Owner(OwnerKind.ADDRESS, "203.0.113.7")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reported(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [json.loads(record.getMessage()) for record in caplog.records if record.name == "weft.events"]
    caplog.clear()
    return found


def test_a_repetition_is_counted_and_told_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    events = Events(clock)

    def fail() -> None:
        events.note(SecurityEvent.LOGIN_FAILED, Severity.WARNING, MIRA, "no valid token", on="GET /v1/status")

    for _ in range(1000):
        fail()
    assert reported(caplog) == [
        {
            "event": "login_failed",
            "severity": "warning",
            "owner": "address 203.0.113.7",
            "on": "GET /v1/status",
            "reason": "no valid token",
            "times": 1,
            "left_out": 0,
        }
    ]
    clock.now = INTERVAL_S
    fail()
    (again,) = reported(caplog)
    assert (again["times"], again["left_out"]) == (1000, 999)
    assert events.counts[SecurityEvent.LOGIN_FAILED] == 1001


def test_a_flood_of_names_is_bounded_in_lines_and_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    events = Events(clock)
    for number in range(20_000):
        events.note(
            SecurityEvent.LOGIN_FAILED,
            Severity.WARNING,
            Owner(OwnerKind.ADDRESS, f"2001:db8:{number:x}::/64"),
            "x" * 5000,
        )
    assert len(reported(caplog)) == LINES_MAX
    assert len(events._known) == KEYS_MAX
    clock.now = INTERVAL_S
    events.note(SecurityEvent.ACCESS_REFUSED, Severity.NOTICE, MIRA, "the token is for a link")
    (line,) = reported(caplog)
    assert line["left_out"] == 20_000 - LINES_MAX
