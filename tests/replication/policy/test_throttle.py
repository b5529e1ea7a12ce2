"""A hub's request for a slower pace: data waits for the time that it names, and nothing else does."""

from __future__ import annotations

from tests.replication.model import ModelHub, ModelLog
from weft.protocols.link import Throttled
from weft.protocols.ranges import RangeSet
from weft.replication.events import BatchesReceived, HelloReceived, LaneOpenReceived, ReadRequest
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import PolicyRules, SendPolicy
from weft.replication.receiver import Receiver
from weft.replication.sender import Sender

WHY = "tenant default has 1MiB a second, its quota"


class Pair:
    """A sender with a policy, and a receiver that takes everything."""

    def __init__(self, policy: SendPolicy) -> None:
        self.log, self.hub, self.policy, self.now = ModelLog({0: "telemetry"}), ModelHub(), policy, 0
        self.connect()

    def connect(self) -> None:
        self.sender = Sender(
            self.log.hello(),
            1,
            SenderSettings(),
            lambda: 0,
            self.now,
            high_watermark=self.log.high_watermark,
            policy=self.policy,
        )
        self.receiver = Receiver(ReceiverSettings(), "c", "test", lambda: 0, self.now)
        self.sender.open_lane(self.log.lanes()[0], self.log.state(0))
        self.go()

    def go(self) -> int:
        """Let both talk until neither has anything to say. Return the number of batches that came."""
        came = 0
        for _ in range(20):
            self.policy.look(self.now, self.now)
            for event in self.sender.events():
                if isinstance(event, ReadRequest):
                    self.sender.feed(event.lane, self.log.read_now(*event))
            if data := self.sender.data_to_send():
                self.receiver.receive_data(data, self.now)
            for heard in self.receiver.events():
                if isinstance(heard, HelloReceived):
                    self.receiver.welcome()
                elif isinstance(heard, LaneOpenReceived):
                    self.receiver.lane_opened(heard.opening.lane, RangeSet())
                elif isinstance(heard, BatchesReceived):
                    came += len(heard.batches)
            if back := self.receiver.data_to_send():
                self.sender.receive_data(back, self.now)
        return came

    def append(self) -> None:
        self.log.append(0, 1)
        self.sender.offer(0, self.log.state(0))


def test_data_waits_for_the_time_that_the_hub_names() -> None:
    pair = Pair(SendPolicy(PolicyRules()))
    pair.append()
    assert pair.go() == 1
    pair.receiver.send_frame(Throttled(2 * SECOND, 65_536, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    assert WHY in pair.policy.why_held()
    deadline = pair.policy.deadline()
    assert deadline == 2 * SECOND
    pair.now = deadline
    assert pair.go() == 1
    assert pair.policy.message_bytes(256 << 10) == 65_536 // 4
    assert WHY in pair.policy.why_held()  # still slow, though nothing waits at this moment
    pair.now += 11 * SECOND
    pair.policy.look(pair.now, pair.now)
    assert not pair.policy.why_held()


def test_the_hub_can_end_a_wait_and_a_new_connection_has_none() -> None:
    pair = Pair(SendPolicy(PolicyRules()))
    pair.receiver.send_frame(Throttled(600 * SECOND, 0, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    pair.receiver.send_frame(Throttled(0, 0, ""))
    assert pair.go() == 1
    assert not pair.policy.why_held()
    pair.receiver.send_frame(Throttled(600 * SECOND, 0, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    pair.connect()
    pair.go()
    assert not pair.policy.is_held
