"""``weft hub pull`` and ``weft hub pulls``, without a hub: windows, words, and the wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weft.commands.hub_records import SILENT_S_MAX, said, until_over, window
from weft.hub_api.pulls import PullAnswer
from weft.output import Failed, Refused

NOON = 1_795_608_000 * 10**9
"""2026-11-25T12:00Z"""
HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-25T10:00", "10:15", (NOON - 2 * HOUR, NOON - 2 * HOUR + HOUR // 4)),
        ("2026-11-25T10:00", "10:15:30", (NOON - 2 * HOUR, NOON - 2 * HOUR + HOUR // 4 + 30 * 10**9)),
        ("2026-11-25T10:00+01:00", "2026-11-25T11:00Z", (NOON - 3 * HOUR, NOON - HOUR)),
        ("-2h", "-1h", (NOON - 2 * HOUR, NOON - HOUR)),
        ("2h", "0", (NOON - 2 * HOUR, NOON)),
    ],
)
def test_windows(since: str, until: str, expected: tuple[int, int]) -> None:
    assert window(since, until, NOON) == expected


@pytest.mark.parametrize(("since", "until"), [("10:00", "10:15"), ("2026-11-25", "noon"), ("2026-11-25", "25:00")])
def test_windows_that_are_none(since: str, until: str) -> None:
    with pytest.raises(Refused, match="expected a duration ago such as"):
        window(since, until, NOON)


def pull(**fields: Any) -> PullAnswer:
    return msgspec.convert(
        {
            "id": "5f0c",
            "tenant": "default",
            "edge": "press-7",
            "stream": "vibration",
            "from": "",
            "to": "",
            "state": "done",
            "records": 0,
            "records_received": 0,
            "bytes": 0,
            "bytes_received": 0,
            "rest_seconds": None,
            "lost": [],
            "log": None,
            "reason": None,
            "kept_from": None,
            "linked_here": True,
            "asked": "",
            "expires": "",
            "ended": None,
            "by": None,
        }
        | fields,
        PullAnswer,
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (pull(records=300, records_received=300, bytes=5 << 20), "pull 5f0c: done, 300 of 300 records, about 5"),
        (pull(state="asked", linked_here=False), "pull 5f0c: asked; waits until the edge links"),
        (
            pull(state="refused", reason="the edge has no records of that time", kept_from="2026-11-20T07:00:00.0Z"),
            "pull 5f0c: refused; the edge has no records of that time; its oldest record of the stream is of "
            "2026-11-20 07:00:00",
        ),
        (
            pull(records=9, records_received=4, lost=[{"first": 2, "end": 5}, {"first": 7, "end": 9}]),
            "the edge no longer had the records 2-4, 7-8",
        ),
    ],
)
def test_a_pull_in_words(made: PullAnswer, words: str) -> None:
    assert words in said(made)


def test_a_wait_outlives_a_restart_of_the_hub() -> None:
    answers: list[Any] = [Failed("no answer")] * 5 + [pull(state="sending"), pull()]

    def look() -> Any:
        found = answers.pop(0)
        if isinstance(found, Failed):
            raise found
        return found

    assert until_over(pull(state="asked"), look, lambda _: None).state == "done"


def test_a_wait_for_a_hub_that_is_gone_ends() -> None:
    slept: list[float] = []

    def look() -> Any:
        raise Failed("no answer")

    with pytest.raises(Failed):
        until_over(pull(state="asked"), look, slept.append)
    assert sum(slept) == SILENT_S_MAX
