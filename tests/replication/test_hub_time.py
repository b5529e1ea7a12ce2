"""The time of a boot is learned over a link before the first record goes: from two answers, within bounds."""

from __future__ import annotations

from tests.edge_node.links.test_boot_clocks import TRUE, YEARS, Machine
from tests.replication.model import ModelLog
from tests.replication.peer import Peer
from tests.storage.fakes import FakeFileSystem
from weft.protocols.link import Clock, Ping, Pong, Welcome
from weft.replication.runner.progress import ASKS_MAX, WAIT_NS, HubTime


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
