"""What of a log's end may be shown: nothing that a power cut could still take back."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.edge_node.inspect.view import Commit, Durability, is_locked
from weft.storage.filesystem import OSFileSystem

COMMIT = Commit(0, "file", ends={"telemetry": 5}, end=100, is_proven=False)


def judge(*, locked: bool | None, ends: dict[str, int] | None = None, now: list[float] | None = None) -> Durability:
    return Durability(
        "data", None if ends is None else lambda: ends, locked=lambda _: locked, monotonic=lambda: (now or [0.0])[0]
    )


def test_what_a_mark_proves_is_durable() -> None:
    assert judge(locked=True).covers(Commit(0, "file"))


def test_a_node_that_answers_is_believed_before_a_lock_that_cannot_be_seen() -> None:
    assert not judge(locked=False, ends={"telemetry": 4}).covers(COMMIT)


def test_of_a_node_that_does_not_run_everything_counts() -> None:
    assert judge(locked=False).covers(COMMIT)


@pytest.mark.parametrize(("end", "expected"), [(4, False), (5, True)])
def test_a_running_node_says_up_to_where_it_is_durable(end: int, expected: bool) -> None:
    assert judge(locked=True, ends={"telemetry": end}).covers(COMMIT) is expected


@pytest.mark.parametrize("locked", [True, None])
def test_where_nobody_can_be_asked_it_must_have_stood_for_a_second(locked: bool | None) -> None:
    now = [10.0]
    durability = judge(locked=locked, now=now)
    assert not durability.covers(COMMIT)
    now[0] = 10.9
    assert not durability.covers(COMMIT)
    longer = Commit(0, "file", ends={"telemetry": 6}, end=200, is_proven=False)
    now[0] = 11.5
    assert not durability.covers(longer)
    now[0] = 12.5
    assert durability.covers(longer)


def test_a_file_that_was_written_long_ago_need_not_be_waited_for() -> None:
    assert judge(locked=True).covers(Commit(0, "file", end=100, is_proven=False, age_s=3600.0))


def test_a_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    assert is_locked(str(tmp_path)) is False
    lock = OSFileSystem().lock(str(tmp_path))
    assert is_locked(str(tmp_path)) is True
    lock.close()
    assert is_locked(str(tmp_path)) is False
