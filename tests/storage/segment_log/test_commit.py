"""When commits begin: at once while the node is quiet, gathered while it is busy, and never in vain for long."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.segment_log.helpers import Clock, open_log
from tests.storage.segment_log.helpers import open_log as without_turns
from tests.storage.segment_log.pacing_load import SYNC_S, Load
from tests.support.waiting import PATIENCE_S
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogFailed, LogSettings, SegmentLog
from weft.storage.segment_log.commit import FULL_INTERVAL_S, PACED_INTERVAL_S, VAIN_WAITS_MAX, WORTHWHILE_BYTES
from weft.storage.segment_log.settings import DUE_BYTES

CARD_SYNC_S = 0.010
SLACK_S = 1e-6


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    return Load(monkeypatch, rests=True)


def open_loop(load: Load, rate: int, seconds: float, seed: int = 1) -> None:
    """Messages that come by chance, whatever is acknowledged."""
    chance, when, end = random.Random(seed), load.now, load.now + seconds
    while (when := when + chance.expovariate(rate)) < end:
        load.at(when, load.send)


def test_a_message_after_a_quiet_moment_is_committed_at_once(load: Load) -> None:
    for second in range(5):
        load.at(load.now + second, load.send)
    load.run(6)
    assert [ack.waited for ack in load.acks] == pytest.approx([SYNC_S] * 5)


def test_messages_that_follow_one_another_alone_are_each_committed_at_once(load: Load) -> None:
    """As CONNECT of a persistent session, SUBSCRIBE and the two halves of QoS 2 do."""
    for step in range(6):
        load.at(load.now + step * 0.001, load.send)
    load.run(1)
    assert [ack.waited for ack in load.acks] == pytest.approx([SYNC_S] * 6)


def test_a_device_that_waits_for_each_acknowledgement_is_never_held_back(load: Load) -> None:
    load.loop(0.0002)
    load.run(2)
    assert {round(ack.waited, 6) for ack in load.acks} == {SYNC_S}
    assert len(load.acks) == pytest.approx(2 / (0.0002 + SYNC_S), rel=0.01)


@pytest.mark.parametrize(
    ("rate", "interval_s"), [(1000, PACED_INTERVAL_S), (3000, PACED_INTERVAL_S), (10_000, FULL_INTERVAL_S)]
)
def test_a_busy_node_commits_every_interval_and_nobody_waits_longer(load: Load, rate: int, interval_s: float) -> None:
    open_loop(load, rate, 3.0)
    load.run(1)
    before = load.commits()
    load.forget()
    load.run(2)
    assert load.commits() - before <= 1.1 * 2 / interval_s
    assert max(ack.waited for ack in load.acks) <= interval_s + SYNC_S + SLACK_S


def test_what_a_busy_node_appends_wakes_no_thread(load: Load) -> None:
    open_loop(load, 10_000, 2.0)
    load.run(1)
    before = load.commits()
    load.forget()
    load.run(1)
    assert load.wakes <= (load.commits() - before) + 2


@pytest.mark.parametrize(("rate", "share"), [(1000, 0.55), (3000, 0.25)])
def test_a_loop_that_rests_between_commits_takes_several_messages_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, rate: int, share: float
) -> None:
    load = Load(monkeypatch, rests=True)
    open_loop(load, rate, 3.0)
    load.run(1)
    load.forget()
    load.run(2)
    assert load.turns <= share * len(load.acks)


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_clients_in_a_closed_loop_after_a_fleet_find_no_loop_that_rests(
    monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    def rate(interval_s: float | None, rests: bool) -> int:
        load = Load(monkeypatch, interval_s, rests=rests)
        open_loop(load, 1500, 1.0)
        load.run(1)
        for client in range(clients):
            load.loop(0.001 + client * 5e-6)
        load.run(0.5)
        load.forget()
        load.run(1)
        return len(load.acks)

    assert rate(None, True) >= 0.95 * rate(0.0, False)


@pytest.mark.parametrize(
    ("clients", "delay_s"),
    [(2, 0.001), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 0.0002), (15, 0.001)))],
)
def test_clients_in_a_closed_loop_keep_their_rate(
    monkeypatch: pytest.MonkeyPatch, clients: int, delay_s: float
) -> None:
    """Each comes back a little later than the one before, as a node that reads one after the other sees them."""

    def rate(interval_s: float | None) -> int:
        load = Load(monkeypatch, interval_s)
        for client in range(clients):
            load.loop(delay_s + client * 5e-6)
        load.run(1.2)  # the first waits are in vain
        load.forget()
        load.run(1)
        return len(load.acks)

    assert rate(None) >= 0.95 * rate(0.0)


def test_a_fleet_after_a_closed_loop_is_gathered_within_a_second(load: Load) -> None:
    stop = load.now + 1.5

    def again() -> None:
        if load.now < stop:
            load.at(load.now + 0.0002, lambda: load.send(again))

    for _ in range(5):
        load.send(again)
    load.run(1.5)
    open_loop(load, 1500, 2.5)
    load.run(1.2 * PACED_INTERVAL_S * 2**VAIN_WAITS_MAX)
    before = load.commits()
    load.run(1)
    assert load.commits() - before <= 1.1 / PACED_INTERVAL_S


def test_a_disk_that_syncs_slowly_is_never_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough gathers while it syncs."""
    load = Load(monkeypatch, sync_s=CARD_SYNC_S)
    open_loop(load, 1000, 2.0)
    load.run(2)
    idle = [begin - end for end, begin in zip(load.ends[:-1], load.begins[1:], strict=False)]
    assert max(idle) < 0.004, "only until the next message came"


def test_what_is_worthwhile_by_its_size_begins_before_the_interval_is_over(load: Load) -> None:
    for _ in range(2):
        load.at(load.now, load.send)
    for when in (0.001, 0.0011):
        load.at(load.now + when, load.send)
    load.run(0.002)
    assert load.commits() == 1, "two came at once, so the next are held back"
    load.send(bytes_=WORTHWHILE_BYTES)
    load.run(2 * SYNC_S)
    assert len(load.acks) == 5


def test_a_callback_without_records_waits_for_no_interval(load: Load) -> None:
    reports: list[float] = []
    load.send(lambda: load.log.on_durable(lambda _: reports.append(load.now)))
    load.send()
    load.run(0.004)
    assert reports == [load.acks[0].reported]


def test_a_callback_hears_of_the_commit_that_its_records_are_in(load: Load) -> None:
    """Not of the next one: the pacer would hold that back."""
    reports: list[float] = []
    load.at(load.now, load.send)
    load.at(load.now, load.send)
    load.at(load.now + SYNC_S / 2, lambda: load.log.on_durable(lambda _: reports.append(load.now)))
    load.run(0.004)
    assert reports == [load.acks[-1].reported]


@pytest.mark.parametrize("interval_s", [0.002, 0.05])
def test_an_interval_of_ones_own_is_kept_between_all_commits(
    monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    load = Load(monkeypatch, interval_s)
    load.loop(0.0002)
    load.run(1)
    pauses = [begin - end for end, begin in zip(load.ends[:-1], load.begins[1:], strict=False)]
    assert min(pauses) >= interval_s - SLACK_S
    assert max(ack.waited for ack in load.acks) <= interval_s + SYNC_S + SLACK_S


def test_an_interval_of_zero_commits_whatever_came_during_the_last_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(monkeypatch, 0.0)
    open_loop(load, 2000, 1.0)
    load.run(1)
    assert max(ack.waited for ack in load.acks) <= 2 * SYNC_S + SLACK_S


def hold_back(load: Load) -> None:
    """Two messages are durable, and two more wait for the interval."""
    for when in (0.0, 0.0, 0.001, 0.0015):
        load.at(load.now + when, load.send)
    load.run(0.002)
    assert len(load.acks) == 2


def test_stopping_commits_at_once_what_was_held_back(load: Load) -> None:
    hold_back(load)
    load.writer.stopping = True
    assert load.writer.idle_s() == 0
    assert load.writer.step()
    assert len(load.acks) == 4
    assert not load.writer.step(), "nothing is left to do"


def test_a_disk_that_fails_tells_everybody_who_was_held_back(load: Load) -> None:
    hold_back(load)
    load.failure = OSError(errno.EIO, os.strerror(errno.EIO))
    load.run(PACED_INTERVAL_S)
    assert [type(ack.error) for ack in load.acks] == [type(None)] * 2 + [LogFailed] * 2
    assert load.writer.idle_s() == 0
    assert not load.writer.step()


def test_a_wall_clock_that_jumps_holds_nothing_back_for_longer(load: Load) -> None:
    open_loop(load, 1000, 2.0)
    load.run(0.5)
    for jump_s in (3600, -7200, 3600):
        jump_ns = jump_s * 10**9
        load.log.committer.wall_clock = lambda jump_ns=jump_ns: round(load.now * 1e9) + jump_ns  # type: ignore[misc]
        load.forget()
        load.run(0.3)
        assert max(ack.waited for ack in load.acks) <= PACED_INTERVAL_S + SYNC_S + SLACK_S


def test_the_thread_does_not_sleep_over_a_close(tmp_path: Path) -> None:
    log = open_log(
        OSFileSystem(), LogSettings(commit_interval_s=3600), directory=str(tmp_path / "log"), start_writer=True
    )
    stream, durable = log.stream("s"), threading.Event()
    log.append(stream, 5, [b"k"], [b"first"])
    log.on_durable(lambda _: durable.set())
    assert durable.wait(PATIENCE_S)
    outcomes: list[BaseException | None] = []
    log.append(stream, 5, [b"k"], [b"held back"])
    log.on_durable(outcomes.append)
    closing = threading.Thread(target=log.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert outcomes == [None]


def test_a_turn_whose_commit_has_begun_before_its_end_does_not_silence_the_next(tmp_path: Path) -> None:
    """QoS 0 alone asks for no acknowledgement that would wake the writer later."""
    soon: list[Callable[[], None]] = []
    committed = threading.Semaphore(0)
    log = open_log(OSFileSystem(), LogSettings(commit_interval_s=0), directory=str(tmp_path / "log"), start_writer=True)
    log._end_of_tick = soon.append
    log.listen(committed.release)
    stream = log.stream("s")
    log.append(stream, 5, [b"k"], [b"begins the turn"])
    log.append(stream, 5, [b"k"], [bytes(DUE_BYTES)])
    log.append(stream, 5, [b"k"], [bytes(DUE_BYTES)])
    while log.durable_end(stream) < 3:
        assert committed.acquire(timeout=PATIENCE_S)
    soon.pop()()
    log.append(stream, 5, [b"k"], [b"the next turn"])
    soon.pop()()
    while log.durable_end(stream) < 4:
        assert committed.acquire(timeout=PATIENCE_S)
    log.close()


# --- When a commit begins: at the end of the owner's turn, so that it carries all of it, or when enough is pending


def tick_open_log(directory: Path, soon: list[Callable[[], None]], settings: LogSettings = LogSettings()) -> SegmentLog:
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
    log = tick_open_log(tmp_path, soon)
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
    log, durable = tick_open_log(tmp_path, []), threading.Event()
    stream = log.stream("s")
    log.append(stream, 0, [b"k"], [bytes(DUE_BYTES)])
    log.on_durable(lambda _: durable.set())
    assert durable.wait(PATIENCE_S), "the turn has not ended"
    log.close()


def test_closing_commits_what_the_turn_has_left(tmp_path: Path) -> None:
    log = tick_open_log(tmp_path, [])
    stream = log.stream("s")
    log.append(stream, 0, [b"k"], [b"v"])
    log.close()
    log = tick_open_log(tmp_path, [])
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
