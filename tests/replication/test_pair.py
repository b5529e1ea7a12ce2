"""Sender and receiver against each other over a network that cuts, on any schedule."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.replication.model import ModelHub, ModelLog, Pair
from weft.protocols.ranges import RangeSet
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import SendPolicy

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
