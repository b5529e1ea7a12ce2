"""A log in memory, a hub that keeps what it got, and a network that cuts: for driving the link machines."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weft.protocols.batch import ClockReading, ClockState, columns_from_lists, decode_header, encode, records
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Origin
from weft.protocols.link import (
    PROTOCOL_VERSION,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    LaneOpen,
    LaneOpened,
    Welcome,
)
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import (
    Acked,
    BatchesReceived,
    GapReceived,
    HelloReceived,
    LaneOpenReceived,
    MarksReceived,
    ReadRequest,
    SenderEvent,
)
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.policy import SendPolicy
from weft.replication.receiver import Receiver
from weft.replication.sender import Sender
from weft.replication.source import LaneSnapshot, OfferedLane

CLOCK = ClockReading(7, 1, ClockState.SYNCED)
WALL = 1_700_000_000_000_000_000


def make_batch(lane: int, seq: int, count: int, size: int = 20, origin: int = 0) -> bytes:
    """Records ``seq`` on, each with its own number in the payload."""
    payloads = [struct.pack("<Q", seq + i) + b"x" * size for i in range(count)]
    times = struct.pack(f"<{count}q", *(WALL + seq + i for i in range(count)))
    return encode(lane, seq, columns_from_lists(times, [b"t"] * count, payloads), CLOCK, origin=origin)


class ModelLog:
    """What ``LogSource`` promises, from lists."""

    def __init__(self, streams: dict[int, str]) -> None:
        self.streams = streams
        self.batches: dict[int, list[bytes]] = {lane: [] for lane in streams}
        self.gap_list: dict[int, list[GapRange]] = {lane: [] for lane in streams}
        self.ends = dict.fromkeys(streams, 0)
        self.safe = {lane: RangeSet() for lane in streams}
        self.listeners: list[Callable[[Collection[int] | None], None]] = []
        self.high_watermarks: dict[tuple[str, int], int] = {}
        """(hub, lane) -> what it can hold; without an entry anything."""
        self.origins: dict[int, Origin] = {}
        self.given: dict[str, dict[int, int]] = {}
        self.give_error: OSError | None = None

    def append(self, lane: int, count: int, size: int = 20, origin: int = 0) -> None:
        self.batches[lane].append(make_batch(lane, self.ends[lane], count, size, origin))
        self.ends[lane] += count
        for listener in self.listeners:
            listener([lane])

    def lose(self, lane: int, count: int) -> None:
        """The next ``count`` records do not come."""
        self.gap_list[lane].append(GapRange(self.ends[lane], self.ends[lane] + count, 1))
        self.ends[lane] += count
        for listener in self.listeners:
            listener([lane])

    def lanes(self) -> list[OfferedLane]:
        return [OfferedLane(lane, name, ("a/+",), origin=self.origins.get) for lane, name in self.streams.items()]

    def held(self, lane: int) -> RangeSet:
        headers = [decode_header(batch) for batch in self.batches[lane]]
        return RangeSet((header.base_seq, header.end_seq) for header in headers)

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        return {lane: self.state(lane) for lane in lanes}

    def state(self, lane: int) -> LaneSnapshot:
        mark = Mark(WALL + self.ends[lane] - 1, self.ends[lane])
        return LaneSnapshot(self.held(lane), self.ends[lane], list(self.gap_list[lane]), mark)

    def read_now(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        for batch in self.batches[lane]:
            if decode_header(batch).end_seq > seq and (not found or sum(map(len, found)) + len(batch) <= bytes_max):
                found.append(batch)
        return found

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return self.read_now(lane, seq, bytes_max)

    def high_watermark(self, hub: str, lane: int) -> int:
        return self.high_watermarks.get((hub, lane), SEQ_END)

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        if self.give_error is not None:
            raise self.give_error
        self.given.setdefault(hub, {}).update(ends)

    def released(self, lane: int, ranges: RangeSet) -> None:
        self.safe[lane].update(ranges)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def hello(self) -> Hello:
        return Hello(PROTOCOL_VERSION, "default", "edge-1", 99, 5, WALL, "test")


@dataclass
class ModelHub:
    """What a hub has committed: it trims records that it holds, and stores the rest; records take a gap's place."""

    records: dict[int, RangeSet] = field(default_factory=dict)
    stored: Counter[tuple[int, int]] = field(default_factory=Counter)
    gaps: dict[int, RangeSet] = field(default_factory=dict)

    def held(self, lane: int) -> RangeSet:
        """Records and gaps."""
        held = self.gaps.get(lane, RangeSet()).copy()
        held.update(self.records.get(lane, RangeSet()))
        return held

    def commit(self, lane: int, event: BatchesReceived | GapReceived) -> RangeSet:
        """Store what is new of it; returns what is durable now because of it."""
        held = self.records.setdefault(lane, RangeSet())
        gaps = self.gaps.setdefault(lane, RangeSet())
        if isinstance(event, GapReceived):
            gap = event.gap
            gaps.update(held.missing(gap.first, gap.end))
            return RangeSet([(gap.first, gap.end)])
        ranges = RangeSet()
        for header, batch in event.batches:
            for record in records(batch):
                assert struct.unpack_from("<Q", record.payload)[0] == record.seq
                self.stored[lane, record.seq] += record.seq not in held
            held.add(header.base_seq, header.end_seq)
            gaps.remove(header.base_seq, header.end_seq)
            ranges.add(header.base_seq, header.end_seq)
        return ranges


class Pair:
    """One connection between a log and a hub, message by message. Messages and ACKs wait until they are moved."""

    def __init__(
        self,
        log: ModelLog,
        hub: ModelHub,
        *,
        epoch: int = 1,
        sending: SenderSettings | None = None,
        receiving: ReceiverSettings | None = None,
        now: int = 0,
        policy: SendPolicy | None = None,
    ) -> None:
        self.log, self.hub, self.now, self.policy = log, hub, now, policy
        self.receiving = receiving or ReceiverSettings()
        self.sender = Sender(
            log.hello(),
            epoch,
            sending or SenderSettings(),
            lambda: WALL + self.now,
            now,
            high_watermark=log.high_watermark,
            policy=policy,
        )
        for lane in log.lanes():
            self.sender.open_lane(lane, log.state(lane.lane))
        self.lanes: dict[int, int] = {}
        """Number of a lane on the link -> in the log."""
        self.receiver = Receiver(self.receiving, "cluster", "test", lambda: WALL + 500 + self.now, now)
        self.upward: list[bytes] = []
        self.downward: list[bytes] = []
        self.uncommitted: list[BatchesReceived | GapReceived] = []
        self.marks: dict[int, list[Mark]] = {}
        self.sent_bytes = 0
        self.events: list[object] = []

    def pump_sender(self) -> None:
        """Whatever the sender can do now; what it says waits in ``upward``."""
        for lane in self.log.streams:
            self.sender.offer(lane, self.log.state(lane))
        while True:
            if self.policy is not None:
                self.policy.look(self.now, WALL + self.now)
            requests = self._sender_events()
            for request in requests:
                self.sender.feed(request.lane, self.log.read_now(*request))
            data = self.sender.data_to_send()
            if data:
                self.upward.append(data)
                self.sent_bytes += len(data)
                if self.policy is not None:
                    self.policy.sent(len(data))
            elif not requests:
                return

    def _sender_events(self) -> list[ReadRequest]:
        requests = []
        for event in self.sender.events():
            self.events.append(event)
            if isinstance(event, Acked):
                self.log.released(event.lane, event.ranges)
            if isinstance(event, ReadRequest):
                requests.append(event)
        return requests

    def deliver_up(self, length: int | None = None) -> None:
        """One message, or only its first ``length`` bytes, reaches the hub, which commits it some time later."""
        if self.upward:
            self.receiver.receive_data(self.upward.pop(0)[:length], self.now)
        for event in self.receiver.events():
            self.events.append(event)
            match event:
                case HelloReceived():
                    self.receiver.welcome()
                case LaneOpenReceived():
                    opening = event.opening
                    lane = next(key for key, name in self.log.streams.items() if name == opening.stream)
                    self.lanes[opening.lane] = lane
                    self.receiver.lane_opened(opening.lane, self.hub.records.get(lane, RangeSet()).copy())
                case BatchesReceived() | GapReceived():
                    self.uncommitted.append(event)
                case MarksReceived():
                    for number, seq in event.lanes:
                        self._check_mark(self.lanes[number], Mark(event.time, seq))

    def _check_mark(self, lane: int, mark: Mark) -> None:
        assert mark.time < WALL + mark.seq, "the record with that number has that time"
        there = self.hub.held(lane)
        for event in self.uncommitted:
            if self.lanes[event.lane] != lane:
                continue
            if isinstance(event, BatchesReceived):
                there.update((header.base_seq, header.end_seq) for header, _ in event.batches)
            else:
                there.add(event.gap.first, event.gap.end)
        assert there.covers(0, mark.seq), "a mark came before what it covers"
        self.marks.setdefault(lane, []).append(mark)

    def acknowledge(self, index: int = 0) -> None:
        """The hub commits one of the things it took, in any order, and acknowledges it."""
        if self.uncommitted:
            event = self.uncommitted.pop(index % len(self.uncommitted))
            self.receiver.acknowledge(event.lane, self.hub.commit(self.lanes[event.lane], event))

    def pump_receiver(self) -> None:
        while data := self.receiver.data_to_send():
            self.downward.append(data)

    def deliver_down(self) -> None:
        self.pump_receiver()
        if self.downward:
            self.sender.receive_data(self.downward.pop(0), self.now)

    def advance(self, now: int) -> None:
        self.now = now
        self.sender.handle_timeout(now)
        self.receiver.handle_timeout(now)

    def settle(self) -> None:
        """Deliver everything both ways until nothing moves."""
        while True:
            self.pump_sender()
            self.pump_receiver()
            if not (self.upward or self.downward or self.uncommitted):
                return
            self.deliver_up()
            self.acknowledge()
            self.deliver_down()


# --- A log in memory of many batches, whose state and reads cost the same however long it is


class LongLog(ModelLog):
    """A log that only grows. Each batch is made when it is read."""

    def __init__(self, streams: dict[int, str], size: int = 20) -> None:
        super().__init__(streams)
        self.size = size
        self.firsts: dict[int, list[int]] = {lane: [] for lane in streams}

    def append(self, lane: int, count: int, size: int = 20, origin: int = 0) -> None:
        self.firsts[lane].append(self.ends[lane])
        self.ends[lane] += count
        for listener in self.listeners:
            listener([lane])

    def append_many(self, lane: int, batches: int, count: int) -> None:
        for _ in range(batches):
            self.append(lane, count)

    def held(self, lane: int) -> RangeSet:
        return RangeSet([(0, self.ends[lane])] if self.ends[lane] else [])

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        return {lane: self.state(lane) for lane in lanes}

    def state(self, lane: int) -> LaneSnapshot:
        return LaneSnapshot(self.held(lane), self.ends[lane], [], Mark(WALL + self.ends[lane] - 1, self.ends[lane]))

    def read_now(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        total, firsts = 0, self.firsts[lane]
        at = max(0, bisect_right(firsts, seq) - 1)
        while at < len(firsts) and seq < self.ends[lane]:
            end = firsts[at + 1] if at + 1 < len(firsts) else self.ends[lane]
            batch = make_batch(lane, firsts[at], end - firsts[at], self.size)
            total += len(batch)
            if found and total > bytes_max:
                break
            found.append(batch)
            at += 1
        return found


# --- A sender alone, whose hub is the test


class Peer:
    """A sender and the frames that go in and out of it."""

    def __init__(self, log: ModelLog, settings: SenderSettings | None = None) -> None:
        self.sender = Sender(
            log.hello(), 1, settings or SenderSettings(), lambda: WALL, 0, high_watermark=log.high_watermark
        )
        for lane in log.lanes():
            self.sender.open_lane(lane, log.state(lane.lane))
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        hello, *openings = self.heard()
        assert isinstance(hello, Hello)
        assert [opening.lane for opening in openings if isinstance(opening, LaneOpen)] == [1, 2][: len(log.streams)]

    def say(self, *frames: Frame, now: int = 0) -> list[SenderEvent]:
        self.sender.receive_data(self._encoder.encode(list(frames)), now)
        return self.sender.events()

    def heard(self) -> list[Frame]:
        frames: list[Frame] = []
        while data := self.sender.data_to_send():
            frames += self._decoder.decode(data)
        return frames


def welcome(*held: tuple[int, int], window: int = 1 << 20, batch: int = 1 << 20, record: int = 0) -> list[Frame]:
    """The hub takes the link and both lanes, and has ``held`` of the first."""
    taken = Welcome(1, "cluster", window, batch, WALL + 7, "test", record_bytes_max=record)
    return [taken, LaneOpened(1, list(held)), LaneOpened(2, [])]
