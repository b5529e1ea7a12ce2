"""Notices of gaps: one when a gap opens and one when it is over, until they are durable, and across restarts."""

from __future__ import annotations

import json
from typing import Any

from weft.edge_node.sources.notices import NOT_RUNNING, NOTICES_MAX, Gaps, moment

SECOND = 1_000_000_000
ITEMS = ("meter1/power",)


def told(gaps: Gaps) -> list[dict[str, Any]]:
    return [json.loads(content) for _, content in gaps.due()]


def test_a_gap_is_told_when_it_opens_and_when_it_is_over() -> None:
    gaps = Gaps("line")
    for second in (5, 6, 7):
        gaps.miss("meter1", ITEMS, "no answer within 1 s", second * SECOND)
    assert told(gaps) == [
        {
            "source": "line",
            "kind": "polls",
            "lost": "certain",
            "reason": "no answer within 1 s",
            "items": ["meter1/power"],
            "from": "1970-01-01T00:00:05.000Z",
            "to": None,
            "missed": 1,
        }
    ]
    gaps.miss("meter1", ITEMS, "the connection was lost", 8 * SECOND)
    gaps.close("meter1", 9 * SECOND)
    (over,) = told(gaps)
    assert (over["from"], over["to"], over["missed"]) == (moment(5 * SECOND), moment(9 * SECOND), 4)
    assert over["reason"] == "no answer within 1 s; the connection was lost"
    assert gaps.missed == 4


def test_shorter_gaps_than_asked_for_are_counted_alone() -> None:
    gaps = Gaps("line", notice_after=3)
    gaps.miss("meter1", ITEMS, "no answer", 0, 2)
    gaps.close("meter1", 3)
    gaps.missed_between(ITEMS, "late", 3, 4, 2)
    assert told(gaps) == []
    gaps.missed_between(ITEMS, "late", 3, 4, 3)
    assert [each["missed"] for each in told(gaps)] == [3]
    assert gaps.missed == 7


def test_a_notice_is_written_until_it_is_durable() -> None:
    gaps = Gaps("line")
    gaps.miss("a", ITEMS, "x", 0)
    gaps.miss("b", ITEMS, "x", 0)
    (first, _), (second, _) = gaps.due()
    assert gaps.due() == []
    gaps.durable(first)
    gaps.again()
    assert [number for number, _ in gaps.due()] == [second]


def test_what_waits_is_bounded_and_openings_go_first() -> None:
    gaps = Gaps("line")
    for at in range(NOTICES_MAX):
        gaps.miss("a", ITEMS, "x", at)
        gaps.close("a", at + 1)
    waiting = told(gaps)
    assert len(waiting) == NOTICES_MAX
    assert all(each["to"] for each in waiting)


def test_the_end_of_a_gap_is_kept_rather_than_an_opening_that_is_written() -> None:
    gaps = Gaps("line")
    for at in range(NOTICES_MAX):
        gaps.miss(f"d{at}", ITEMS, "x", at)
    gaps.due()
    gaps.close("d0", NOTICES_MAX)
    assert [each["to"] for each in told(gaps)] == [moment(NOTICES_MAX)]
    gaps.again()
    waiting = told(gaps)
    assert len(waiting) == NOTICES_MAX
    assert waiting[-1]["to"]


def test_a_node_that_was_killed_names_the_time_since_its_last_durable_value() -> None:
    before = Gaps("line")
    before.reached("meter1", ITEMS, 5 * SECOND)
    before.reached("removed", ITEMS, 5 * SECOND)
    before.reached("away", ITEMS, 5 * SECOND)
    before.miss("away", ITEMS, "no answer", 6 * SECOND, 2)
    after = Gaps("line")
    after.restore(before.state(), dict.fromkeys(("meter1", "away", "new"), 1.0), 20 * SECOND)
    assert set(after.open) == {"meter1", "away"}
    assert told(after) == []
    after.close("meter1", 20 * SECOND)
    after.close("away", 21 * SECOND)
    assert [(each["from"], each["to"], each["missed"], each["reason"]) for each in told(after)] == [
        (moment(5 * SECOND), moment(20 * SECOND), 15, NOT_RUNNING),
        (moment(6 * SECOND), moment(21 * SECOND), 14, f"no answer; {NOT_RUNNING}"),
    ]
    after.restore(before.state(), {"meter1": 30.0}, 20 * SECOND)
    after.restore(b"\x00 not the state of anything", {"new": 1.0}, 0)
    assert after.open == {}


def test_a_value_from_before_a_gap_does_not_end_it() -> None:
    gaps = Gaps("line")
    gaps.miss("meter1", ITEMS, "no answer", 5 * SECOND)
    assert gaps.close("meter1", 4 * SECOND) is None
    assert gaps.open
