"""A hub in memory behind a connection that breaks: it has the real receiving end of a link, and one lane."""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_sinks.sinks.stream.lane import Position
from spark_sinks.sinks.stream.link import Connection, ConnectionFailed
from weft.protocols.batch import records
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.events import (
    BatchesReceived,
    ConnectionLost,
    HelloReceived,
    LaneOpenReceived,
    MarksReceived,
    ReceiverEvent,
)
from weft.replication.flow_control import ReceiverSettings
from weft.replication.receiver import Receiver


def payload_of(position: Position) -> bytes:
    return b"%d:%d" % position


class OneLaneHub:
    """What is committed of a lane, and the connection that may write it.

    Args:
        rows: all that the query makes; the lane must always be a prefix of it.
        faults: how likely each look for an answer is to meet one.
    """

    def __init__(self, chance: random.Random, rows: list[Position], faults: float) -> None:
        self.chance, self.rows, self.faults = chance, rows, faults
        self.held: list[Position] = []
        self.epoch = 0
        self.clock = 1000
        self.owner: ModelConnection | None = None
        self.marks: list[tuple[int, int]] = []
        self.meanwhile: Callable[[], None] | None = None
        """Called once, in the middle of a conversation: another attempt."""

    def connect(self, url: str, *_: object) -> ModelConnection:
        if self.chance.random() < self.faults:
            raise ConnectionFailed(f"{url}: nothing answers")
        return ModelConnection(self)

    def commit(self, event: BatchesReceived) -> None:
        for header, batch in event.batches:
            assert header.base_seq <= len(self.held), "a batch came before what it continues"
            for record in records(batch):
                if record.seq >= len(self.held):
                    assert record.payload == payload_of(self.rows[record.seq])
                    self.held.append(self.rows[record.seq])


class ModelConnection(Connection):
    """One connection, whose faults and delays the hub draws."""

    def __init__(self, hub: OneLaneHub) -> None:
        self.url, self._hub = "http://hub", hub
        hub.clock += hub.chance.choice([1, 1, 1, -5])  # now and then another node's clock, which is behind
        settings = ReceiverSettings(window_bytes=hub.chance.choice([300, 4000]))
        self._receiver = Receiver(settings, "cluster", "test", lambda: hub.clock, 0)
        self._uncommitted: list[BatchesReceived] = []
        self._lane = 0
        self._is_cut = False

    def send(self, message: bytes) -> None:
        self._check()
        self._receiver.receive_data(message, 0)
        for event in self._receiver.events():
            self._answer(event)

    def _answer(self, event: ReceiverEvent) -> None:
        hub = self._hub
        match event:
            case HelloReceived():
                self._receiver.welcome()
            case LaneOpenReceived(opening) if opening.epoch <= hub.epoch:
                self._receiver.refuse(RefuseCode.IDENTITY_CONFLICT, "another one", "stop")
            case LaneOpenReceived(opening):
                if hub.owner is not None and hub.owner is not self:
                    hub.owner.fence()
                hub.owner, hub.epoch, self._lane = self, opening.epoch, opening.lane
                self._receiver.lane_opened(opening.lane, self.committed())
            case BatchesReceived():
                self._uncommitted.append(event)
            case MarksReceived():
                assert all(seq <= len(hub.held) for _, seq in event.lanes) or self._uncommitted
                hub.marks += [(event.time, seq) for _, seq in event.lanes]
            case ConnectionLost():
                raise AssertionError(event.reason)

    def committed(self) -> RangeSet:
        return RangeSet([(0, len(self._hub.held))] if self._hub.held else [])

    def fence(self) -> None:
        """A hub takes nothing more of a connection that another one has overtaken."""
        self._uncommitted.clear()
        self._receiver.refuse(RefuseCode.IDENTITY_CONFLICT, "another one", "stop")

    def receive(self, wait_s: float) -> bytes | None:
        self._check()
        if not wait_s:
            return None
        if data := self._receiver.data_to_send():
            return data
        hub = self._hub
        if (meanwhile := hub.meanwhile) is not None and hub.chance.random() < 0.1:
            hub.meanwhile = None
            meanwhile()
        if self._uncommitted and hub.owner is self:
            hub.commit(self._uncommitted.pop(0))
            if hub.chance.random() >= hub.faults:  # otherwise the answer waits for that of a later commit, or is lost
                self._receiver.acknowledge(self._lane, self.committed())
        if hub.chance.random() < hub.faults:
            self._is_cut = True
        return self._receiver.data_to_send() or None

    def _check(self) -> None:
        if self._is_cut:
            raise ConnectionFailed("the connection broke")

    def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """What had arrived may be committed all the same."""
        self._is_cut = True
        if self._hub.owner is self and self._uncommitted and self._hub.chance.random() < 0.5:
            self._hub.commit(self._uncommitted.pop(0))
        self._uncommitted.clear()
