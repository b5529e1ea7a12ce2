"""What an edge knows of the hub's store: proofs by what is acknowledged anyway, and canaries where nothing is."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from tests.replication.model import WALL, ModelHub, ModelLog, Pair
from tests.replication.peer import Peer, welcome
from weft.protocols.chunk_index import Mark
from weft.protocols.link import CANARY, FEATURES, Ack, Canary, CanaryBack, Frame, LaneOpened, Marks, Ping, Pong, Welcome
from weft.replication.events import ConnectionLost
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND, CanaryWatch, Proof
from weft.replication.policy import BudgetCount, BudgetRule, PolicyRules, SendPolicy, StreamWindows

SETTINGS = SenderSettings(ping_interval=45 * SECOND)
HUB_WAITS = 60 * SECOND
IDLE = ModelLog({1: "telemetry", 2: "alarms"})
ZONE = ZoneInfo("UTC")
SPENT = PolicyRules(budget=BudgetRule(1000, 1, ZONE))
SHUT = PolicyRules(schedule=(StreamWindows(("*",), (), ZONE),))


def greeting(*features: str) -> list[Frame]:
    return [Welcome(1, "cluster", 1 << 20, 1 << 20, WALL, "test", list(features), HUB_WAITS if features else 0)]


def answered(peer: Peer, until: int, *, since: int = 1) -> list[tuple[int, list[Frame]]]:
    """Let seconds pass on an idle link, whose PINGs are answered. Return the messages of the sender."""
    messages = []
    for second in range(since, until):
        now = second * SECOND
        for lane in peer.sender.stale_lanes(now):
            peer.sender.offer(lane, IDLE.state(lane)._replace(mark=Mark(WALL + now, 0)))
        peer.sender.handle_timeout(now)
        if frames := peer.heard():
            messages.append((second, frames))
            peer.say(*(Pong(frame.sent, WALL + now) for frame in frames if isinstance(frame, Ping)), now=now)
    return messages


def asked(messages: list[tuple[int, list[Frame]]]) -> list[tuple[int, int]]:
    return [(second, frame.number) for second, frames in messages for frame in frames if isinstance(frame, Canary)]


@pytest.fixture
def peer() -> Peer:
    """A link without records, whose lanes the hub opened after 2 s."""
    peer = Peer(IDLE, SETTINGS)
    opened: list[Frame] = [LaneOpened(1, []), LaneOpened(2, [])]
    peer.say(*greeting(CANARY), *opened, now=2 * SECOND)
    return peer


def test_the_first_lane_that_the_hub_opens_proves_its_store_and_a_later_one_does_not(peer: Peer) -> None:
    assert peer.sender.canary.proof == Proof(0, 2 * SECOND, 2 * SECOND)
    again = ModelLog({3: "late"})
    peer.sender.open_lane(again.lanes()[0], again.state(3))
    peer.heard()
    peer.say(LaneOpened(3, []), now=90 * SECOND)
    assert peer.sender.canary.proof == Proof(0, 2 * SECOND, 2 * SECOND), "its epoch may be durable since the first"


def test_an_acknowledgement_of_records_proves_the_store(log: ModelLog) -> None:
    peer = Peer(log, SETTINGS)
    peer.say(*welcome())
    peer.sender.handle_timeout(30 * SECOND)
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    peer.heard()
    peer.say(Ack(1, [(0, 10)]), now=31 * SECOND)
    assert peer.sender.canary.proof == Proof(30 * SECOND, SECOND, 31 * SECOND)


def test_an_idle_link_asks_each_five_minutes_with_a_ping_and_never_alone(peer: Peer) -> None:
    messages = answered(peer, 600)
    assert asked(messages) == [(315, 1)], "300 s after the first proof, with the next PING"
    frames = next(frames for second, frames in messages if second == 315)
    assert [type(frame) for frame in frames] == [Ping, Marks, Canary], "behind the marks, which the hub writes anyway"
    seconds = [second for second, _ in messages if second > 1]
    assert seconds == list(range(45, 600, 45)), "and no message is for it alone"


def test_the_round_trip_is_without_what_the_hub_let_wait(peer: Peer) -> None:
    assert asked(answered(peer, 316)) == [(315, 1)]
    peer.say(CanaryBack(1, 44 * SECOND), now=360 * SECOND)
    assert peer.sender.canary.proof == Proof(315 * SECOND, SECOND, 360 * SECOND)
    assert asked(answered(peer, 700, since=360)) == [(675, 2)], "300 s after the answer, with the next PING"
    peer.say(CanaryBack(2, 10**18), now=720 * SECOND)
    assert peer.sender.canary.proof == Proof(675 * SECOND, 0, 720 * SECOND), "what a hub says may be wrong"


def test_records_answer_for_a_canary(log: ModelLog) -> None:
    peer = Peer(log, SETTINGS)
    peer.say(*greeting(CANARY), LaneOpened(1, [(0, 10)]), LaneOpened(2, []))
    for second in range(1, 1000):
        peer.sender.handle_timeout(second * SECOND)
        if second % 100 == 0:
            log.append(1, 1)
            peer.sender.offer(1, log.state(1))
            peer.sender.events()
            peer.sender.feed(1, log.read_now(1, log.ends[1] - 1, 1 << 20))
        assert not any(isinstance(frame, Canary) for frame in peer.heard())
        peer.say(Ack(1, [(0, log.ends[1])]), now=second * SECOND + 1)


def test_a_hub_that_answers_pings_and_no_canary_is_overdue(peer: Peer) -> None:
    watch, liveness = peer.sender.canary, peer.sender.liveness
    assert asked(answered(peer, 316)) == [(315, 1)]
    answered(peer, 404, since=316)
    assert watch.overdue(liveness.answered) is None, "the hub may let it wait for 60 s, and has 30 s for the commit"
    answered(peer, 406, since=404)
    assert watch.overdue(liveness.answered) == 315 * SECOND
    assert asked(answered(peer, 1000, since=406)) == [(630, 2), (945, 3)], "it is asked again, and no more often"
    assert watch.overdue(liveness.answered) == 315 * SECOND
    peer.say(CanaryBack(2, 0), now=1000 * SECOND)
    assert watch.overdue(liveness.answered) == 315 * SECOND, "late answers are those of another time"
    peer.say(CanaryBack(3, 0), now=1001 * SECOND)
    assert watch.overdue(liveness.answered) is None


def test_a_hub_that_answers_nothing_is_not_overdue_but_silent(peer: Peer) -> None:
    assert asked(answered(peer, 316)) == [(315, 1)]
    for second in range(316, 436):
        peer.sender.handle_timeout(second * SECOND)
        peer.heard()
        assert peer.sender.canary.overdue(peer.sender.liveness.answered) is None
    assert isinstance(peer.sender.events()[-1], ConnectionLost)


def test_a_hub_of_the_release_before_is_not_asked_and_its_proof_ages() -> None:
    peer = Peer(IDLE, SETTINGS)
    peer.say(*greeting(), LaneOpened(1, []), LaneOpened(2, []), now=SECOND)
    assert peer.sender.canary.is_fresh(300 * SECOND)
    assert asked(answered(peer, 1000)) == []
    assert not peer.sender.canary.is_fresh(301 * SECOND)
    assert peer.sender.canary.overdue(peer.sender.liveness.answered) is None


def test_an_answer_to_a_question_that_was_not_asked_ends_the_link(peer: Peer) -> None:
    assert isinstance(peer.say(CanaryBack(1, 0))[-1], ConnectionLost)


@pytest.mark.parametrize(("rules", "is_paused"), [(PolicyRules(), True), (SPENT, False), (SHUT, False)])
def test_a_canary_goes_while_data_waits_by_the_links_policy(rules: PolicyRules, is_paused: bool) -> None:
    """As PINGs do, it holds nothing up and is held up by nothing."""
    log = ModelLog({1: "telemetry"})
    policy = SendPolicy(rules, is_paused=is_paused, count=BudgetCount({"2023-11-01": 1000}))
    pair = Pair(log, hub := ModelHub(), sending=SETTINGS, policy=policy)
    pair.settle()
    log.append(1, 10)
    seen: list[Canary] = []
    for second in range(1, 400):
        pair.advance(second * SECOND)
        pair.settle()
        for event in pair.events:
            if isinstance(event, Canary) and event not in seen:
                seen.append(event)
                pair.receiver.prove(event.number, 0, pair.now)
    assert seen == [Canary(1)]
    assert not hub.records.get(1)
    assert policy.why_held()
    proof = pair.sender.canary.proof
    assert proof is not None
    assert (proof.sent, proof.took) == (315 * SECOND, 0)


def test_a_proof_older_than_the_newest_adds_nothing() -> None:
    watch = CanaryWatch(300 * SECOND, 30 * SECOND, 0)
    watch.proves(50, 100)
    watch.proves(20, 200)
    watch.proves(None, 300)
    assert watch.proof == Proof(50, 50, 100)


def test_both_ends_of_this_release_announce_the_feature() -> None:
    assert CANARY in FEATURES
