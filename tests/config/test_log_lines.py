"""What repeats itself is said ever more rarely, with a count, in bounded memory."""

from __future__ import annotations

import logging

import pytest

from weft.config.log_lines import Repeats, Throttle, left_out


def said_at(repeats: Repeats, key: str, seconds: range) -> dict[int, int]:
    found = {now: repeats.due(key, float(now)) for now in seconds}
    return {now: count for now, count in found.items() if count is not None}


def test_a_repetition_is_said_at_growing_intervals_with_what_was_left_out() -> None:
    said = said_at(Repeats(first_s=60, longest_s=240), "down", range(0, 1200, 10))
    assert list(said) == [0, 60, 180, 420, 660, 900, 1140]
    assert said[0] == 0
    assert sum(said.values()) + len(said) == 115, "every repetition up to the last line is said or counted"


def test_another_thing_is_said_at_once_and_what_is_over_is_news_again() -> None:
    repeats = Repeats()
    assert repeats.due("down", 0) == 0
    assert repeats.due("refused", 1) == 0
    assert repeats.due("down", 2) is None
    repeats.forget("down")
    assert repeats.due("down", 3) == 0
    assert repeats.due("refused", 4) is None
    repeats.clear()
    assert repeats.due("refused", 5) == 0


def test_what_must_be_said_is_and_makes_the_next_wait_longer() -> None:
    repeats = Repeats(first_s=60)
    repeats.due("down", 0)
    repeats.due("down", 1)
    assert repeats.due("down", 2, always=True) == 1
    assert repeats.due("down", 100) is None
    assert repeats.due("down", 122) == 1


def test_what_was_quiet_for_long_begins_at_the_shortest_wait_again() -> None:
    repeats = Repeats(first_s=60, longest_s=600)
    for now in range(0, 3000, 10):
        repeats.due("down", float(now))
    assert list(said_at(repeats, "down", range(10_000, 10_200, 10))) == [10_000, 10_060, 10_180]


def test_memory_is_bounded_whatever_others_write() -> None:
    repeats = Repeats(keys_max=10)
    for number in range(1000):
        assert repeats.due(f"edge {number}", 0) == 0
    assert repeats.due("edge 999", 0) is None
    assert repeats.due("edge 0", 0) == 0, "forgotten, so it is said once more"


def test_what_was_left_out_is_counted_for_people() -> None:
    assert left_out(0) == ""
    assert left_out(1234) == "; 1,234 more like this since the last line"


# --- throttle


def test_a_flood_of_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = logging.getLogger("tests.flood")
    throttle = Throttle(lines_max=3, interval_s=10, clock=lambda: now[0])
    log.addFilter(throttle)
    try:
        for number in range(1003):
            log.warning("closed %d", number)
        now[0] += 9.9
        log.warning("still too early")
        now[0] += 0.1
        log.warning("closed %s", "again: 100%")
        log.warning("and again")
    finally:
        log.removeFilter(throttle)
    assert caplog.messages == [
        "closed 0",
        "closed 1",
        "closed 2",
        "closed again: 100% (1,001 lines before this one were left out)",
        "and again",
    ]
