"""When a commit begins: at the end of the owner's turn, so that it carries all of it, or when enough is pending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tests.storage.segment_log.helpers import Clock
from tests.storage.segment_log.helpers import open_log as without_turns
from tests.support.waiting import PATIENCE_S
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.settings import DUE_BYTES


def open_log(directory: Path, soon: list[Callable[[], None]], settings: LogSettings = LogSettings()) -> SegmentLog:
    return SegmentLog.open(
        str(directory),
        settings,
        wall_clock=lambda: 0,
        clock_reading=Clock().reading,
        random_bits=lambda _: 7,
        post=lambda callback: callback(),
        end_of_tick=soon.append,
        filesystem=OSFileSystem(),
    )


def test_the_appends_of_one_turn_are_one_commit(tmp_path: Path) -> None:
    soon: list[Callable[[], None]] = []
    log = open_log(tmp_path, soon)
    stream, durable = log.stream("s"), threading.Event()
    before = log.stats().commits
    for number in range(20):
        log.append(stream, 0, [b"k"], [b"%d" % number])
        log.on_durable(lambda _: durable.set())
    assert len(soon) == 1, "asked for once"
    assert not log.ranges(stream)
    soon.pop()()
    assert durable.wait(PATIENCE_S)
    assert log.stats().commits == before + 1
    assert list(log.ranges(stream)) == [(0, 20)]
    log.close()


def test_a_long_turn_does_not_keep_the_disk_waiting(tmp_path: Path) -> None:
    log, durable = open_log(tmp_path, []), threading.Event()
    stream = log.stream("s")
    log.append(stream, 0, [b"k"], [bytes(DUE_BYTES)])
    log.on_durable(lambda _: durable.set())
    assert durable.wait(PATIENCE_S), "the turn has not ended"
    log.close()


def test_closing_commits_what_the_turn_has_left(tmp_path: Path) -> None:
    log = open_log(tmp_path, [])
    stream = log.stream("s")
    log.append(stream, 0, [b"k"], [b"v"])
    log.close()
    log = open_log(tmp_path, [])
    assert list(log.ranges(stream)) == [(0, 1)]
    log.close()


def test_the_append_after_a_callback_that_joined_the_commit_in_flight_wakes_the_writer(tmp_path: Path) -> None:
    """Otherwise it would wait for the writer's housekeeping, half a minute."""
    log = without_turns(OSFileSystem(), directory=str(tmp_path), start_writer=False)
    stream, queue = log.stream("s"), log._state.queue
    log.append(stream, 0, [b"k"], [b"in flight"])
    assert queue.take() is not None
    log.on_durable(lambda _: None)
    assert not queue.due, "nothing is queued"
    woken: list[None] = []
    log._state.changed.notify = lambda n=1: woken.append(None)  # type: ignore[method-assign]
    log.append(stream, 0, [b"k"], [b"next"])
    assert queue.due
    assert woken
