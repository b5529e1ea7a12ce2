"""The log of a link tells every change, and does not fill a disk while nothing changes."""

from __future__ import annotations

import logging
import random

import pytest

from tests.edge_node.links.test_source import TRUE, YEARS, Machine
from tests.replication.model import ModelLog, Peer
from tests.storage.fakes import FakeFileSystem
from weft.config.log_lines import STABLE_S
from weft.protocols.link import Clock, Ping, Pong, Welcome
from weft.protocols.ranges import RangeSet
from weft.replication.events import LinkState
from weft.replication.runner.progress import ASKS_MAX, WAIT_NS, Acknowledged, HubTime, LinkLog

URL = "https://hub.example.com"
DOWN = f"{URL}: cannot connect (Connection refused)"


class Driver:
    """A link log with a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log = LinkLog("cloud", self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def connected(self) -> None:
        self.log.connected(URL, "4fb3d6e1", self.now)

    def failed(self, reason: str = DOWN, state: LinkState = LinkState.WAITING) -> None:
        self.log.failed(state, reason, 1.5, self.now)


def test_connected_disconnected_and_recovered_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = Driver()
    link.connected()
    link.wait(7200)
    link.failed("the hub closed the connection (WebSocket code 1001)")
    for _ in range(3):
        link.wait(20)
        link.failed()
    link.wait(20)
    link.connected()
    assert caplog.messages == [
        f"link cloud: connected to {URL}, hub 4fb3d6e1",
        "link cloud: disconnected after 2.0 hours: the hub closed the connection (WebSocket code 1001) "
        "(next try in 1.5 s)",
        f"link cloud: not connected: {DOWN} (next try in 1.5 s)",
        f"link cloud: connected again to {URL}, hub 4fb3d6e1, after 80 seconds away, 3 failed attempts",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING", "INFO"]


def test_a_day_of_the_same_refusal_is_some_lines_and_every_attempt_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    link = Driver()
    for _ in range(2880):
        link.failed("the token is not accepted (401)", LinkState.REFUSED)
        link.wait(30)
    assert 20 <= len(caplog.messages) <= 35
    assert caplog.messages[0] == ("link cloud: refused by the hub: the token is not accepted (401) (next try in 1.5 s)")
    assert "for 23" in caplog.messages[-1]
    assert "119 more like this since the last line" in caplog.messages[-1]


def test_another_reason_is_said_at_once_and_two_that_take_turns_are_not_said_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = Driver()
    for attempt in range(40):
        link.wait(1)
        link.failed(DOWN if attempt % 2 else f"{URL}: no answer within {attempt} s")
    link.failed("the token is not accepted (401)", LinkState.REFUSED)
    assert len(caplog.messages) == 3
    assert "refused by the hub for 40 seconds, 41 failed attempts" in caplog.messages[-1]


def test_the_last_line_tells_whether_a_flapping_link_is_up(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes: at most STABLE_S and one attempt after a change, the newest line says how it is."""
    caplog.set_level(logging.INFO)
    chance = random.Random(7)
    link = Driver()
    is_up, changed_at = False, link.now
    for _ in range(20_000):
        if is_up or chance.random() < 0.5:
            link.failed(chance.choice(("closed", "broken")) if is_up else DOWN)
            changed_at, is_up = (link.now if is_up else changed_at), False
        else:
            link.connected()
            changed_at, is_up = link.now, True
        told_up = caplog.records[-1].getMessage().startswith("link cloud: connected")
        if is_up or link.now - changed_at >= STABLE_S:
            assert told_up == is_up
        link.wait(chance.choice((0.5, 1, 5, 30)))
    assert len(caplog.messages) < 20_000 / 10


def test_trouble_after_a_sound_hour_is_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = Driver()
    for _ in range(5):
        link.connected()
        link.wait(3600)
        link.failed("closed")
        link.wait(1)
    assert sum("disconnected" in line for line in caplog.messages) == 5


def test_a_clock_that_differs_is_told_with_its_size_once_an_hour_and_when_it_agrees_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    link = Driver()
    for offset_s in (0.0, -9.9, 20 * 365 * 86_400.0, 20 * 365 * 86_400.0):
        link.log.clock(offset_s, link.now)
        link.wait(60)
    link.wait(3600)
    link.log.clock(-2 * 365 * 86_400.0, link.now)
    link.log.clock(0.1, link.now)
    link.log.clock(0.1, link.now)
    said = [record.getMessage().partition(". ")[0] for record in caplog.records]
    assert said == [
        "link cloud: this machine's clock is 20.0 years behind the hub's",
        "link cloud: this machine's clock is 2.0 years ahead of the hub's",
        "link cloud: this machine's clock agrees with the hub's again",
    ]


# --- The time of a boot is learned over a link before the first record goes: from two answers, within bounds


class Link:
    """A link of a machine whose clock is not set, to a hub that tells any time."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.peer = Peer(ModelLog({1: "telemetry"}))
        self.now = 0
        self.time = HubTime(self.machine.clocks(FakeFileSystem()), "http://hub-a", lambda: self.now)

    def welcome(self, ahead: int = 0) -> None:
        self.peer.say(Welcome(1, "cluster", 1 << 20, 1 << 20, self.machine.true + ahead, "test"), now=self.now)
        self.time.follow(self.peer.sender)

    def pong(self, ahead: int = 0) -> list[Clock]:
        """Answer the PING that is due; return what the hub then hears of clocks."""
        self.peer.sender.handle_timeout(self.now)
        [ping] = [frame for frame in self.peer.heard() if isinstance(frame, Ping)]
        self.peer.say(Pong(ping.sent, self.machine.true + ahead), now=self.now)
        self.time.follow(self.peer.sender)
        return [frame for frame in self.peer.heard() if isinstance(frame, Clock)]


def test_records_wait_for_the_second_answer_and_the_notice_goes_before_them() -> None:
    link = Link()
    link.welcome()
    assert link.time.is_awaited(link.now)
    [notice] = link.pong()
    assert (notice.boot, notice.offset) == (1, TRUE)
    assert not link.time.is_awaited(link.now)


def test_answers_that_disagree_teach_nothing_until_two_agree() -> None:
    link = Link()
    link.welcome(YEARS)
    assert link.pong(2 * YEARS) == []
    assert link.pong() == []
    [notice] = link.pong()
    assert notice.offset == TRUE


def test_a_hub_that_cannot_say_the_time_holds_no_record_for_long() -> None:
    link = Link()
    link.welcome()
    for number in range(1, ASKS_MAX + 1):
        assert link.pong(number * YEARS) == []
    link.peer.sender.handle_timeout(link.now)
    assert not [frame for frame in link.peer.heard() if isinstance(frame, Ping)], "it is not asked for ever"
    assert link.time.is_awaited(WAIT_NS - 1)
    assert not link.time.is_awaited(WAIT_NS)


def test_a_hub_has_the_records_of_its_word_and_not_those_of_notices_that_it_took() -> None:
    known, safe, reported = Acknowledged({("hub", "s"): RangeSet([(0, 40)])}), RangeSet([(0, 10)]), RangeSet()
    assert not known.held("hub", "s"), "what it had before the start, it may have lost"
    known.opened("hub", "s", safe, reported, [])
    safe.add(10, 20)
    reported.add(10, 15)
    assert list(known.held("hub", "s")) == [(0, 10), (15, 20)]
