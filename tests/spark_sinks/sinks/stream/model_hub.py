"""A hub in memory behind a connection that breaks: it has the real receiving end of a link, and one lane."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import Position, parse_ends
from spark_sinks.sinks.stream.link import Connection, ConnectionFailed, Link, ProducerSettings
from spark_sinks.sinks.stream.recovery import LastRecord, StoredHub
from weft.protocols.batch import records
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import LaneOpen, RefuseCode
from weft.protocols.message_headers import POSITION_BEHIND
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
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


# --- A hub in memory with many lanes, and tasks of several spreads that run in turns of a chosen order
#
# It has the real receiving end of a link. Each look at the hub, and each wait for it, may be the turn of another task.


class Turns:
    """Runs functions in threads of which one works at a time; the next one is drawn."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._main = threading.Semaphore(0)
        self._own: dict[int, threading.Semaphore] = {}
        self._failed: list[BaseException] = []

    def run(self, *works: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._work, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
            self._main.acquire()  # it waits for its first turn
        while alive := [thread for thread in threads if thread.ident in self._own]:
            chosen = self._chance.choice(alive)
            assert chosen.ident is not None
            for _ in range(self._chance.choice([1, 1, 3, 20])):
                own = self._own.get(chosen.ident)
                if own is not None:
                    own.release()
                    self._main.acquire()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def step(self) -> None:
        """Give the turn away, in a thread of ``run``."""
        own = self._own.get(threading.get_ident())
        if own is not None:
            self._main.release()
            own.acquire()

    def _work(self, work: Callable[[], None]) -> None:
        self._own[threading.get_ident()] = threading.Semaphore(0)
        try:
            self.step()
            work()
        except BaseException as error:
            self._failed.append(error)
        finally:
            del self._own[threading.get_ident()]
            self._main.release()


@dataclass
class HeldLane:
    held: list[Position] = field(default_factory=list)
    behind: list[dict[int, int]] = field(default_factory=list)
    """What each record says of other lanes."""
    is_deleted: bool = False
    """True when retention has deleted the records."""
    epoch: int = 0
    owner: ModelSpreadModelConnection | None = None

    @property
    def ranges(self) -> RangeSet:
        return RangeSet([(0, len(self.held))] if self.held else [])


class ManyLanesHub:
    """What is committed of all lanes: together, they must always be a beginning of all rows, in their order."""

    def __init__(self, chance: random.Random, rows: list[Position], faults: float) -> None:
        self.chance, self.rows, self.faults = chance, rows, faults
        self.turns = Turns(chance)
        self.lanes: dict[Lane, HeldLane] = {}
        self.count = 0
        self.newest: HeldLane | None = None
        self.clock = 1 << 40

    def connect(self, url: str, *_: object) -> ModelSpreadModelConnection:
        self.turns.step()
        if self.chance.random() < self.faults:
            raise ConnectionFailed(f"{url}: nothing answers")
        return ModelSpreadModelConnection(self)

    def commit(self, lane: Lane, event: BatchesReceived) -> None:
        known = self.lanes[lane]
        for header, batch in event.batches:
            assert header.base_seq <= len(known.held), "a batch came before what it continues"
            for record in records(batch):
                if record.seq >= len(known.held):
                    expected = list(map(payload_of, self.rows[self.count : self.count + 1]))
                    assert [record.payload] == expected, "a row came twice, or one is missing"
                    known.held.append(self.rows[self.count])
                    known.behind.append(parse_ends(dict(record.headers).get(POSITION_BEHIND)))
                    known.is_deleted = False
                    self.newest = known
                    self.count += 1

    def delete_old(self) -> None:
        """Delete the records of all lanes but the one that was written last."""
        for known in self.lanes.values():
            known.is_deleted = known is not self.newest


class ModelSpreadModelConnection(Connection):
    """One connection, whose faults and delays the hub draws."""

    def __init__(self, hub: ManyLanesHub) -> None:
        self.url, self._hub = "http://hub", hub
        hub.clock += hub.chance.choice([1, 1, 1 << 19, 1 << 22, -5, -(1 << 21)])  # nodes have clocks of their own
        settings = ReceiverSettings(window_bytes=hub.chance.choice([300, 4000]))
        self._receiver = Receiver(settings, "cluster", "test", lambda: hub.clock, 0)
        self._uncommitted: list[BatchesReceived] = []
        self._lanes: dict[int, Lane] = {}
        self._is_cut = False

    def send(self, message: bytes) -> None:
        self._check()
        self._receiver.receive_data(message, 0)
        for event in self._receiver.events():
            self._answer(event)

    def _answer(self, event: ReceiverEvent) -> None:
        match event:
            case HelloReceived():
                self._receiver.welcome()
            case LaneOpenReceived(opening):
                self._open(opening)
            case BatchesReceived():
                self._uncommitted.append(event)
            case MarksReceived():
                pass
            case ConnectionLost():
                raise AssertionError(event.reason)

    def _open(self, opening: LaneOpen) -> None:
        lane = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        known = self._hub.lanes.setdefault(lane, HeldLane())
        self._lanes[opening.lane] = lane
        if opening.flags & LaneFlag.RELAY:
            self._receiver.lane_opened(opening.lane, known.ranges)
        elif opening.epoch <= known.epoch:
            self._receiver.refuse(RefuseCode.IDENTITY_CONFLICT, "another one", "stop")
        else:
            if known.owner is not None and known.owner is not self:
                known.owner.fence()
            known.owner, known.epoch = self, opening.epoch
            self._receiver.lane_opened(opening.lane, known.ranges)

    def fence(self) -> None:
        """A hub takes nothing more of a connection that another one has overtaken."""
        self._uncommitted.clear()
        self._receiver.refuse(RefuseCode.IDENTITY_CONFLICT, "another one", "stop")

    def receive(self, wait_s: float) -> bytes | None:
        self._hub.turns.step()
        self._check()
        if not wait_s:
            return None
        if data := self._receiver.data_to_send():
            return data
        hub = self._hub
        if self._uncommitted:
            self._commit_one(answers=hub.chance.random() >= hub.faults)
        if hub.chance.random() < hub.faults:
            self._is_cut = True
        return self._receiver.data_to_send() or None

    def _commit_one(self, *, answers: bool) -> None:
        event = self._uncommitted.pop(0)
        lane = self._lanes[event.lane]
        if self._hub.lanes[lane].owner is self:
            self._hub.commit(lane, event)
            if answers:
                self._receiver.acknowledge(event.lane, self._hub.lanes[lane].ranges)

    def _check(self) -> None:
        if self._is_cut:
            raise ConnectionFailed("the connection broke")

    def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """What had arrived may be committed all the same."""
        self._is_cut = True
        if self._uncommitted and self._hub.chance.random() < 0.5:
            self._commit_one(answers=False)
        self._uncommitted.clear()


class ModelStore(StoredHub):
    """The hub in memory, as the beginning of a source shard sees it."""

    def __init__(self, settings: ProducerSettings, hub: ManyLanesHub) -> None:
        super().__init__(settings)
        self._of, self._model = settings, hub

    def link(self, edge: str) -> Link:
        hub = self._model
        return Link(
            self._of,
            self._epoch,
            lambda: 0.0,
            lambda: hub.clock,
            edge=edge,
            connect=hub.connect,
            sleep=lambda _: hub.turns.step(),
        )

    def _epoch(self, lane: Lane) -> int:
        self._model.turns.step()
        return self._model.lanes.get(lane, HeldLane()).epoch

    def kept(self, lane: Lane) -> LaneState | None:
        self._model.turns.step()
        known = self._model.lanes.get(lane)
        return None if known is None else LaneState(known.epoch, known.ranges)

    def last(self, lane: Lane, shard: int, seq: int) -> LastRecord:
        self._model.turns.step()
        known = self._model.lanes[lane]
        if known.is_deleted:
            raise SinkError("deleted")
        return LastRecord(known.held[seq], None, known.behind[seq])

    def check(self, shard: int, last: LastRecord) -> None:
        pass
