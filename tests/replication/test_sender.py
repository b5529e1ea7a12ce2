"""What a hub may not do to an edge, and what an edge does with a log that disappoints it."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.replication.model import WALL, ModelHub, ModelLog, Pair, Peer, make_batch, welcome
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, decode_header
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, Origin, OriginKind
from weft.protocols.link import (
    ENCRYPTED,
    LAST_WORDS,
    PAIR,
    Ack,
    Data,
    Frame,
    Gap,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    LaneOrigins,
    LastWords,
    Marks,
    Refuse,
    RefuseCode,
    Welcome,
    split_batches,
)
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import (
    Acked,
    ConnectionLost,
    Fault,
    LaneEnded,
    LaneTaken,
    ReadRequest,
    Refusal,
    Unreadable,
    Welcomed,
)
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import SendPolicy
from weft.replication.sender import Outbox, Read
from weft.replication.source import LaneSnapshot, OfferedLane


def test_welcome_releases_what_is_held_and_asks_for_the_rest(log: ModelLog) -> None:
    events = Peer(log).say(*welcome((0, 4)))
    acked = Acked(1, RangeSet([(0, 4)]), by_opening=True)
    assert events[:4] == [Welcomed("cluster", 1 << 20), LaneTaken(1), acked, LaneTaken(2)]
    assert isinstance(events[4], ReadRequest)
    assert events[4][:2] == (1, 4)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_hub_of_another_cluster_gets_nothing_and_releases_nothing(log: ModelLog, is_other: bool) -> None:
    peer = Peer(log, SenderSettings(cluster_id="another" if is_other else "cluster"))
    events = peer.say(*welcome((0, 4)))
    if is_other:
        [refusal] = events
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.by_peer) == (RefuseCode.UNAUTHORISED, False)
        assert "cluster cluster" in refusal.message
        assert peer.sender.closed
        assert not peer.heard()
    else:
        assert Acked(1, RangeSet([(0, 4)]), by_opening=True) in events


@pytest.mark.parametrize(
    ("demands", "features", "why"),
    [
        (set(), {PAIR}, "keeps a copy"),
        ({PAIR}, set(), "leads to a hub"),
        ({PAIR, ENCRYPTED}, {PAIR}, "its copy would be readable"),
        ({PAIR, ENCRYPTED}, {PAIR, ENCRYPTED}, ""),
        ({PAIR}, {PAIR, ENCRYPTED}, ""),
        (set(), set(), ""),
    ],
)
def test_a_copy_counts_as_no_hub_and_what_is_encrypted_stays_so(
    log: ModelLog, demands: set[str], features: set[str], why: str
) -> None:
    peer = Peer(log, SenderSettings(demands=frozenset(demands)))
    greeting, *lanes = welcome((0, 4))
    assert isinstance(greeting, Welcome)
    events = peer.say(msgspec.structs.replace(greeting, features=sorted(features)), *lanes)
    if why:
        [refusal] = events
        assert isinstance(refusal, Refusal)
        assert why in refusal.message
        assert peer.sender.closed
    else:
        assert Acked(1, RangeSet([(0, 4)]), by_opening=True) in events


def test_a_hub_that_holds_more_than_the_log_ever_had_is_a_conflict(log: ModelLog) -> None:
    event = Peer(log).say(*welcome((0, 11)))[-1]
    assert isinstance(event, Refusal)
    assert event.code == RefuseCode.IDENTITY_CONFLICT
    assert not event.by_peer
    assert "old copy" in event.message
    assert "start with an empty one, which gets a new log id" in event.advice


def test_a_hub_that_holds_more_than_it_was_ever_given_is_a_conflict(log: ModelLog) -> None:
    log.high_watermarks = {("cluster", 1): 4, ("another", 1): 0}
    event = Peer(log).say(*welcome((0, 5)))[-1]
    assert isinstance(event, Refusal)
    assert event.code == RefuseCode.IDENTITY_CONFLICT
    assert "records of stream telemetry up to seq 5, but this log gave it none beyond 4" in event.message
    assert isinstance(Peer(log).say(*welcome((0, 4)))[0], Welcomed)


def test_what_the_next_message_may_name_is_told_before_gaps_too(log: ModelLog) -> None:
    log.lose(2, 4)
    peer = Peer(log)
    events = peer.say(*welcome((0, 3)))
    assert peer.sender.named_ends() == {1: 3, 2: log.ends[2]}
    assert peer.sender.named_ends() == {}
    (request,) = [event for event in events if isinstance(event, ReadRequest)]
    peer.sender.feed(1, log.read_now(*request))
    assert peer.sender.named_ends() == {1: 10}
    peer.heard()
    assert peer.sender.named_ends() == {}


@pytest.mark.parametrize(
    "frames",
    [
        [Ack(1, [(0, 1)])],
        [*welcome(), *welcome()],
        [*welcome(), LaneOpened(1, [])],
        [LaneOpened(1, [])],
        [*welcome(), LaneOpened(9, [])],
        [*welcome(), Ack(9, [(0, 1)])],
        [*welcome(), Ack(1, [(0, 11)])],
        [*welcome(), Ack(1, [(5, 6), (1, 2)])],
        [Data(1, make_batch(1, 0, 1))],
    ],
)
def test_a_hub_that_breaks_the_protocol_is_left(log: ModelLog, frames: list[Frame]) -> None:
    peer = Peer(log)
    lost = peer.say(*frames)[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.PEER
    assert peer.sender.closed
    assert peer.sender.data_to_send() == b""


def test_a_refusal_is_told_with_its_advice(log: ModelLog) -> None:
    assert Peer(log).say(Refuse(1, 5, "too many", "wait")) == [Refusal(5, "too many", "wait")]
    redirect = Refuse(1, RefuseCode.REDIRECT, "not here", "go there", "http://hub-2")
    assert Peer(log).say(redirect) == [Refusal(7, "not here", "go there", url="http://hub-2")]


def test_a_hub_of_a_later_release_is_no_fault_but_a_thing_to_upgrade(log: ModelLog) -> None:
    event = Peer(log).say(Welcome(2, "c", 1, 1, 0, "t"))[-1]
    assert isinstance(event, Refusal)
    assert event.code == RefuseCode.VERSION
    assert "protocol 2" in event.message


def test_an_origin_is_explained_once_on_a_connection_before_the_first_batch_that_names_it(log: ModelLog) -> None:
    log.origins = {number: Origin(number, OriginKind.FUNCTION, f"calm-{number}", "1", b"") for number in (3, 4)}
    log.append(1, 5, origin=3)
    log.append(1, 5, origin=9)
    log.append(1, 5, origin=4)
    for _ in range(2):
        peer = Peer(log)
        peer.say(*welcome())
        peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
        reported, data = (frame for frame in peer.heard() if isinstance(frame, LaneOrigins | Data))
        assert reported == LaneOrigins(1, [log.origins[3], log.origins[4]])
        assert isinstance(data, Data)
        log.append(1, 5, origin=4)
        peer.sender.offer(1, log.state(1))
        peer.sender.events()
        peer.sender.feed(1, log.read_now(1, log.ends[1] - 5, 1 << 20))
        assert not [frame for frame in peer.heard() if isinstance(frame, LaneOrigins)]


def test_a_batch_that_the_hub_does_not_take_closes_its_lane_alone(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome(batch=100))
    peer.sender.feed(1, log.read_now(1, 0, 1000))
    ended = peer.sender.events()[-1]
    assert isinstance(ended, LaneEnded)
    assert ended.lane == 1
    assert "stream telemetry: the batch at seq 0 has" in ended.message
    assert "limits.batch" in ended.advice
    closed = peer.heard()[0]
    assert isinstance(closed, LaneClosed)
    assert closed.lane == 1
    assert peer.sender.connected


def test_a_record_that_the_hub_does_not_take_is_not_sent_and_those_before_it_are(log: ModelLog) -> None:
    log.append(1, 1, size=2 << 20)
    log.append(1, 3)
    peer = Peer(log)
    peer.say(*welcome(window=8 << 20, batch=8 << 20, record=1 << 20))
    long = log.ends[1] - 4
    peer.sender.feed(1, log.read_now(1, 0, 4 << 20))
    data = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert [header.end_seq for frame in data for header, _ in split_batches(frame.batches)][-1] == long
    [request] = [event for event in peer.sender.events() if isinstance(event, ReadRequest) and event.lane == 1]
    assert request.seq == long
    peer.sender.feed(1, log.read_now(1, long, 4 << 20))
    ended = peer.sender.events()[-1]
    assert isinstance(ended, LaneEnded)
    assert f"the record at seq {long} has {(2 << 20) + 9} bytes, the hub's limit is {1 << 20}" in ended.message
    assert "limits.record" in ended.advice
    assert peer.sender.connected


def test_a_lane_that_the_hub_closes_is_offered_again_and_the_others_go_on(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome((0, 4)))
    peer.sender.feed(1, log.read_now(1, 4, 1000))
    peer.heard()
    assert peer.sender.unacked_bytes
    (ended,) = peer.say(LaneClosed(1, RefuseCode.OVERLOADED, "too many holes", "wait"), now=SECOND)
    assert ended == LaneEnded(1, RefuseCode.OVERLOADED, "too many holes", "wait")
    assert peer.sender.unacked_bytes == 0
    assert peer.say(Ack(1, [(4, 10)]), now=SECOND) == []
    log.append(2, 1)
    peer.sender.offer(2, log.state(2))
    (request,) = peer.sender.events()
    assert isinstance(request, ReadRequest)
    peer.sender.feed(2, log.read_now(*request))
    retry = SenderSettings().lane_retry
    peer.sender.handle_timeout(SECOND + retry - 1)
    assert not [frame for frame in peer.heard() if isinstance(frame, LaneOpen)]
    peer.sender.handle_timeout(SECOND + retry)
    (again,) = [frame for frame in peer.heard() if isinstance(frame, LaneOpen)]
    assert (again.lane, again.stream) == (3, "telemetry")
    taken, acked, request = peer.say(LaneOpened(3, [(0, 4)]), now=SECOND + retry)
    assert (taken, acked) == (LaneTaken(1), Acked(1, RangeSet([(0, 4)]), by_opening=True))
    assert isinstance(request, ReadRequest)
    assert request[:2] == (1, 4)


def test_a_link_without_any_lane_left_ends_with_the_reason(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome())
    peer.say(LaneClosed(2, RefuseCode.UNAVAILABLE, "the store fails", "try another node"))
    last = peer.say(LaneClosed(1, RefuseCode.UNAVAILABLE, "the store fails", "try another node"))[-1]
    assert last == Refusal(RefuseCode.UNAVAILABLE, "the store fails", "try another node")
    assert peer.sender.closed


def test_a_conflict_in_one_of_an_edges_lanes_is_a_conflict_of_the_link(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome())
    last = peer.say(LaneClosed(2, RefuseCode.IDENTITY_CONFLICT, "a copy", "new data_dir"))[-1]
    assert last == Refusal(RefuseCode.IDENTITY_CONFLICT, "a copy", "new data_dir")


def test_lanes_are_opened_and_closed_at_any_time(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome((0, 10)))
    log.streams[3] = "machine"
    log.batches[3], log.gap_list[3], log.ends[3] = [], [], 0
    log.append(3, 4)
    origin = Lane("region", "edge-7", 4, "machine")
    peer.sender.open_lane(OfferedLane(3, "machine", (), identity=origin, flags=LaneFlag.RELAY), log.state(3))
    (opening,) = [frame for frame in peer.heard() if isinstance(frame, LaneOpen)]
    assert (opening.lane, opening.tenant, opening.edge, opening.log_id) == (3, "region", "edge-7", 4)
    assert (opening.epoch, opening.flags) == (0, LaneFlag.RELAY)
    assert [frame for frame in peer.heard() if isinstance(frame, Data)] == []
    request = peer.say(LaneOpened(3, []))[-1]
    assert isinstance(request, ReadRequest)
    assert request[:2] == (3, 0)
    peer.sender.feed(3, log.read_now(3, 0, 1000))
    assert [frame.lane for frame in peer.heard() if isinstance(frame, Data)] == [3]
    peer.sender.close_lane(3)
    assert [type(frame) for frame in peer.heard()] == [LaneClosed]
    assert peer.sender.unacked_bytes == 0
    assert peer.say(Ack(3, [(0, 4)]), LaneClosed(3, 9, "", "")) == []
    peer.sender.offer(3, log.state(3))
    assert peer.sender.events() == []


def test_a_lane_that_continues_the_hubs_learns_its_epoch_and_its_numbers_from_it(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome((0, 10)))
    assert peer.sender.welcome is not None
    epoch = peer.sender.welcome.clock
    assert epoch == WALL + 7
    lane = OfferedLane(3, "machine", (), identity=Lane("a", "b", 4, "machine"), epoch=epoch, continues_hub=True)
    peer.sender.open_lane(lane, LaneSnapshot(RangeSet(), 0, [], None))
    (opening,) = [frame for frame in peer.heard() if isinstance(frame, LaneOpen)]
    assert opening.epoch == epoch
    assert peer.say(LaneOpened(3, [(0, 40)])) == [LaneTaken(3), Acked(3, RangeSet([(0, 40)]), by_opening=True)]
    peer.sender.offer(3, LaneSnapshot(RangeSet([(40, 44)]), 44, [], None))
    assert not peer.sender.has_sent(3)
    assert peer.sender.events() == [ReadRequest(3, 40, 1 << 18)]
    peer.sender.feed(3, [make_batch(3, 40, 4)])
    assert [type(frame) for frame in peer.heard()] == [Data], "and no mark, which nobody claims"
    assert peer.sender.has_sent(3)
    # Another owner of the lane has sent more: its owner is to stop, and the hub broke no rule.
    assert peer.say(Ack(3, [(0, 50)])) == [Acked(3, RangeSet([(0, 50)]), newly=10, time=WALL + 40)]


def test_records_that_the_log_lists_and_does_not_give_are_told_and_stepped_over(log: ModelLog) -> None:
    peer = Peer(log)
    log.append(1, 10)
    peer.sender.offer(1, log.state(1))
    peer.say(*welcome())
    peer.sender.feed(1, [log.batches[1][1]])
    assert peer.sender.events() == [Unreadable(1, 0, 10)]
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert decode_header(data.batches).base_seq == 10


def test_a_log_that_gives_nothing_is_not_asked_for_ever(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome())
    peer.sender.feed(1, [])
    assert peer.sender.events() == [Unreadable(1, 0, 10)]
    assert peer.sender.events() == []


def test_a_damaged_batch_from_the_log_closes_its_lane_alone(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome())
    peer.sender.feed(1, [b"not a batch at all" * 10])
    ended = peer.sender.events()[-1]
    assert isinstance(ended, LaneEnded)
    assert "damaged batch near seq 0" in ended.message
    assert peer.sender.connected


def test_many_small_batches_go_as_one_and_a_live_one_as_stored() -> None:
    log = ModelLog({1: "telemetry"})
    for _ in range(200):
        log.append(1, 1)
    peer = Peer(log)
    peer.say(*welcome()[:2])
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert [header.count for header, _ in split_batches(data.batches)] == [200]
    log.append(1, 3)
    peer.sender.offer(1, log.state(1))
    peer.sender.events()
    peer.sender.feed(1, log.read_now(1, 200, 1 << 20))
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert bytes(data.batches) == log.batches[1][-1]


def test_lanes_take_turns() -> None:
    log = ModelLog({1: "telemetry", 2: "alarms"})
    for _ in range(6):
        log.append(1, 100)
        log.append(2, 100)
    pair = Pair(log, ModelHub(), sending=SenderSettings(read_bytes=1, merge_bytes_max=0))
    pair.settle()
    asked = [event.lane for event in pair.events if isinstance(event, ReadRequest)]
    assert asked == [1, 2] * 6


@pytest.mark.parametrize("features", [[LAST_WORDS], []])
def test_last_words_go_behind_all_data_of_lanes_that_are_settled(log: ModelLog, features: list[str]) -> None:
    peer = Peer(log)
    taken, *opened = welcome()
    assert isinstance(taken, Welcome)
    [request] = [
        each
        for each in peer.say(msgspec.structs.replace(taken, features=features), *opened)
        if isinstance(each, ReadRequest)
    ]
    peer.sender.offer(1, log.state(1)._replace(mark=Mark(WALL + 9, 10), is_settled=True))
    peer.sender.offer(2, log.state(2)._replace(mark=Mark(WALL + 9, 0)))  # a function has rows to make
    assert peer.sender.end() is not bool(features)
    assert not any(isinstance(frame, LastWords) and (1, 10) in frame.lanes for frame in peer.heard()), "not yet sent"
    peer.sender.feed(1, log.read_now(*request))
    kinds = [frame for frame in peer.heard() if isinstance(frame, Data | Marks | LastWords)]
    assert isinstance(kinds[0], Data)
    assert [frame for frame in kinds if isinstance(frame, LastWords)] == (
        [LastWords(WALL + 9, [(1, 10)])] if features else []
    )
    assert peer.sender.end()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_ends_the_connection_and_nothing_else(messages: list[bytes], open_first: bool) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 3)
    peer = Peer(log)
    if open_first:
        peer.say(*welcome())
    for message in messages:
        peer.sender.receive_data(message, 1)
    assert not any(isinstance(event, Acked) for event in peer.sender.events())
    peer.sender.data_to_send()


def test_an_ack_that_names_the_whole_lane_again_counts_only_what_is_new(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome((0, 4)))
    acked = [event for end in (6, 6, 9) for event in peer.say(Ack(1, [(0, end)])) if isinstance(event, Acked)]
    assert [event.newly for event in acked] == [2, 0, 3]


def test_what_the_log_let_go_of_after_an_acknowledgement_is_no_gap_that_the_hub_was_told(log: ModelLog) -> None:
    """A hub that loses it later has lost records that it acknowledged: the node's account of those must have them."""
    log.gap_list[1] = [GapRange(10, 12, int(GapReason.BUDGET))]
    log.ends[1] = 12
    peer = Peer(log)
    (request,) = [event for event in peer.say(*welcome((0, 4))) if isinstance(event, ReadRequest)]
    peer.sender.feed(1, log.read_now(*request))
    log.gap_list[1] = [GapRange(0, 4, int(GapReason.ABSENT)), *log.gap_list[1]]
    peer.sender.offer(1, log.state(1))
    assert [frame for frame in peer.heard() if isinstance(frame, Gap)] == [Gap(1, 10, 12, int(GapReason.BUDGET))]
    safe, reported = peer.sender.known(1)
    assert (list(safe), list(reported)) == ([(0, 4)], [(10, 12)])


@pytest.mark.parametrize("fed_first", [False, True], ids=["while they are read", "while they wait"])
def test_records_that_are_still_sent_are_not_told_as_lost(log: ModelLog, fed_first: bool) -> None:
    """The log drops them for room when they were read already, and the hub's window is full."""
    log.batches[1] = [make_batch(1, seq, 1, size=40_000) for seq in range(10)]
    peer = Peer(log)
    (request,) = [event for event in peer.say(*welcome(window=100_000)) if isinstance(event, ReadRequest)]
    read = log.read_now(*request)
    assert 1 < len(read) < 6
    if fed_first:
        peer.sender.feed(1, read)
    log.batches[1] = log.batches[1][6:]
    log.gap_list[1] = [GapRange(0, 6, int(GapReason.BUDGET))]
    peer.sender.offer(1, log.state(1))
    frames = peer.heard()
    if not fed_first:
        peer.sender.feed(1, read)
    told, came = RangeSet(), RangeSet()
    while frames := frames + peer.heard():
        for frame in frames:
            if isinstance(frame, Gap):
                told.add(frame.first, frame.end)
            elif isinstance(frame, Data):
                for header, _ in split_batches(frame.batches):
                    came.add(header.base_seq, header.end_seq)
        frames = []
        for event in peer.say(Ack(1, list(came))):
            if isinstance(event, ReadRequest):
                peer.sender.feed(1, log.read_now(*event))
    assert list(came) == [(0, len(read)), (6, 10)]
    assert list(told) == [(len(read), 6)], "and all that does not come is"


# --- Batches on their way out: which neighbours become one


MOST = 8 << 20


def stored(first: int, boot: int, origin: int = 0) -> Read:
    times = struct.pack("<2q", 1000 * first, 1000 * first + 1)
    columns = batch.columns_from_lists(times, [b"key"] * 2, [b"a", b"b"])
    data = batch.encode(1, first, columns, ClockReading(boot, 1000 * first, ClockState.SYNCED), origin=origin)
    return decode_header(data), data


def test_neighbours_are_merged_with_the_last_run_whatever_came_before_it() -> None:
    """A read may begin with the end of another boot: that must not keep the rest apart."""
    outbox = Outbox(3)
    outbox.batch_bytes_max = MOST
    outbox.window.allow(MOST)
    found = [stored(0, 1), stored(2, 1), stored(4, 2), stored(6, 2), stored(8, 2), stored(10, 2, origin=5)]
    runs = [(header.base_seq, header.end_seq) for header, _ in outbox.merged(found, MOST)]
    assert runs == [(0, 4), (4, 10), (10, 12)]
    assert [header.boot_id for header, _ in outbox.merged(found, MOST)] == [1, 2, 2]


def test_a_run_ends_at_the_bytes_that_it_may_have() -> None:
    outbox = Outbox(3)
    outbox.batch_bytes_max = MOST
    outbox.window.allow(MOST)
    found = [stored(2 * number, 1) for number in range(6)]
    limit = 2 * found[0][0].raw_length
    assert [header.count for header, _ in outbox.merged(found, limit)] == [4, 4, 4]


# --- Sender and receiver against each other over a network that cuts, on any schedule


LANES = {1: "telemetry", 2: "alarms", 7: "machine_1m"}
lanes = st.sampled_from(sorted(LANES))


class Replication(RuleBasedStateMachine):
    """Whatever the network and the hub do, in the end the hub has each record once, and no step claims too much."""

    policy: SendPolicy | None = None

    @initialize(
        window=st.sampled_from([600, 3000, 1 << 20]),
        merge=st.sampled_from([0, 1500, 1 << 18]),
        read=st.integers(1, 5000),
    )
    def start(self, window: int, merge: int, read: int) -> None:
        self.receiving = ReceiverSettings(window_bytes=window)
        self.sending = SenderSettings(merge_bytes_max=merge, read_bytes=read, mark_interval=SECOND)
        self.log, self.hub = ModelLog(LANES), ModelHub()
        self.epoch = 0
        self.now = 0
        self.connect(greeted=True)

    def connect(self, greeted: bool) -> None:
        self.epoch += 1
        self.pair = Pair(
            self.log,
            self.hub,
            epoch=self.epoch,
            sending=self.sending,
            receiving=self.receiving,
            now=self.now,
            policy=self.policy,
        )
        if greeted:
            self.pair.pump_sender()
            self.pair.deliver_up()
            self.pair.deliver_down()
            self.pair.pump_sender()

    @rule(lane=lanes, counts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
    def append(self, lane: int, counts: list[int]) -> None:
        for count in counts:
            self.log.append(lane, count)

    @rule(lane=lanes, count=st.integers(1, 4))
    def lose(self, lane: int, count: int) -> None:
        self.log.lose(lane, count)

    @rule()
    def sender_works(self) -> None:
        self.pair.pump_sender()

    @rule()
    def everything_in_order(self) -> None:
        self.pair.pump_sender()
        self.pair.deliver_up()
        self.pair.acknowledge()
        self.pair.deliver_down()
        self.pair.pump_sender()

    @rule(times=st.integers(1, 4))
    def network_carries_up(self, times: int) -> None:
        for _ in range(times):
            self.pair.deliver_up()

    @rule(index=st.integers(0, 20))
    def hub_commits_in_any_order(self, index: int) -> None:
        self.pair.acknowledge(index)

    @rule()
    def network_carries_down(self) -> None:
        self.pair.deliver_down()

    @rule(lane=lanes)
    def hub_acknowledges_again(self, lane: int) -> None:
        for number, key in self.pair.lanes.items():
            if key == lane and self.hub.held(lane):
                self.pair.receiver.acknowledge(number, self.hub.held(lane))

    @rule(milliseconds=st.integers(1, 3000))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds * SECOND // 1000
        self.pair.advance(self.now)
        if self.pair.sender.closed or self.pair.receiver.closed:
            self.connect(greeted=False)

    @rule(length=st.integers(0, 400), hub_dies=st.booleans(), greeted=st.booleans())
    def connection_breaks(self, length: int, hub_dies: bool, greeted: bool) -> None:
        """Somewhere inside a message; the hub commits what it took unless it dies too."""
        self.pair.deliver_up(length)
        while self.pair.uncommitted and not hub_dies:
            self.pair.acknowledge()
        self.connect(greeted)

    @invariant()
    def window_is_kept(self) -> None:
        sender, receiver = self.pair.sender, self.pair.receiver
        assert sender.unacked_bytes <= self.receiving.window_bytes or len(sender._outbox._in_flight) == 1
        assert receiver.unacked_bytes <= sender.unacked_bytes
        assert not sender.closed
        assert not receiver.closed

    @invariant()
    def log_forgets_only_what_is_committed(self) -> None:
        for lane in LANES:
            held = self.hub.held(lane)
            assert all(held.covers(first, end) for first, end in self.log.safe[lane])

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        assert set(self.hub.stored.values()) <= {1}

    def teardown(self) -> None:
        """This connection brings everything; so does a new one to a hub that forgot nothing."""
        self.settle()
        self.connect(greeted=False)
        self.settle()

    seconds_to_drain = 2
    """A mark that waited for its data goes first, the newest one an interval later."""

    def settle(self) -> None:
        self.pair.settle()  # the peers hear of each other before time continues: their patience may be all but over
        for _ in range(self.seconds_to_drain):
            self.now += SECOND
            self.pair.advance(self.now)
            self.pair.settle()
        assert self.pair.sender.unacked_bytes == self.pair.receiver.unacked_bytes == 0
        for lane in LANES:
            everything = RangeSet([(0, self.log.ends[lane])])
            assert self.hub.held(lane) == everything
            assert self.log.safe[lane] == everything
            lost = RangeSet((gap.first, gap.end) for gap in self.log.gap_list[lane])
            assert self.hub.gaps.get(lane, RangeSet()) == lost
            assert RangeSet((s, s + 1) for at, s in self.hub.stored if at == lane) == self.log.held(lane)
            assert self.pair.marks[lane][-1].seq == self.log.ends[lane]


TestReplication = Replication.TestCase
TestReplication.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
