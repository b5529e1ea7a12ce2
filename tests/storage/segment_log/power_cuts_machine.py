"""A log with its writers, a hub and an operator, who draw what they do from one source of randomness."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all
from tests.storage.segment_log.power_cuts_oracle import Known, Oracle, demand
from weft.protocols.lane import NodeName
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog
from weft.storage.segment_log.log import AskedRun
from weft.storage.segment_log.settings import BATCH_OVERHEAD_BYTES, DEFAULT_POLICY, run_bytes

STREAMS = ("alpha", "beta", "gamma", "delta")
KEYS = (b"press/1", b"press/2", b"", b"line/7/oven")


class Machine:
    """A log, the disk it is on, and what its writers know."""

    def __init__(self, disk: FakeFileSystem, oracle: Oracle, log: SegmentLog, now: Callable[[], int]) -> None:
        self.disk, self.oracle, self.log, self._now = disk, oracle, log, now

    def append(self, chance: random.Random) -> None:
        """Append a run of records; the log may not take it."""
        name = chance.choice(STREAMS)
        self._take(name, self._draw(chance))

    def _draw(self, chance: random.Random) -> list[Known]:
        count, size = chance.choice((1, 1, 2, 5, 12, 60)), chance.choice((0, 3, 40, 100, 200, 700))
        time = self._now() - chance.choice((0, 0, 0, 50_000))
        blob = chance.randbytes(size) if chance.random() < 0.7 else bytes(size)
        return [
            Known(
                time,
                chance.choice(KEYS),
                b"%d:%d:" % (chance.randrange(1 << 40), index) + blob,
                (("content-type", "json"),) if chance.random() < 0.05 else (),
                1 if chance.random() < 0.05 else 0,
            )
            for index in range(count)
        ]

    def _asked(self, name: str, run: list[Known]) -> AskedRun:
        self.oracle.lane(name)
        headers = {at: record.headers for at, record in enumerate(run) if record.headers}
        return self.log.stream(name), [record.key for record in run], [record.payload for record in run], headers

    def _take(self, name: str, run: list[Known]) -> bool:
        stream, keys, payloads, headers = self._asked(name, run)
        flags = {at: record.flags for at, record in enumerate(run) if record.flags}
        lane = self.oracle.lane(name)
        try:
            first = self.log.append(stream, run[0].time, keys, payloads, headers, flags)
        except (LogFull, LogFailed):
            return False
        demand(first == len(lane.records), "a number is given out twice or left out", name, first, len(lane.records))
        lane.records += run
        return True

    def append_together(self, chance: random.Random) -> None:
        """Append to two streams in one commit; the log may take neither."""
        runs = {name: self._draw(chance) for name in chance.sample(STREAMS, 2)}
        asked = [self._asked(name, run) for name, run in runs.items()]
        reserve = sum(run_bytes(*each[1:]) + BATCH_OVERHEAD_BYTES for each in asked)
        with contextlib.suppress(LogFull, LogFailed), self.log.together(reserve):
            if chance.random() < 0.5:
                self.log.ask_room(asked, self._now())
            begins = {name: len(self.oracle.lane(name).records) for name in runs}
            taken = [self._take(name, run) for name, run in runs.items()]
            demand(all(taken), "an append that was made room for is refused", *runs)
            self.oracle.belongs_together(begins)

    def await_durable(self) -> None:
        """Have the acknowledgement of everything appended so far counted when it comes."""
        log, numbers = self.log, self.log.streams()
        ends = [(lane, numbers[name], len(lane.records)) for name, lane in self.oracle.lanes.items() if name in numbers]

        def durable(error: BaseException | None) -> None:
            if error is None:
                for lane, number, end in ends:
                    lane.acknowledge(end, log.durable_end(number))

        log.on_durable(durable)

    def release(self, chance: random.Random) -> None:
        """Say that all there is, or a part of one stream, is safe elsewhere."""
        names = [name for name in self.log.streams() if self.oracle.lane(name).acked]
        whole = chance.random() < 0.5
        for name in names if whole else chance.sample(names, min(1, len(names))):
            lane = self.oracle.lane(name)
            # A hub acknowledges what it was sent: whole batches.
            ends = [end for end in lane.ends if end <= lane.acked]
            first, end = sorted((chance.choice(ends), chance.choice(ends)))
            ranges = RangeSet([(0, ends[-1]) if whole else (first, end)])
            lane.released.update(ranges)
            self.log.release(self.log.stream(name), ranges)

    def release_again(self) -> None:
        """As a hub does when it hears from a node that restarted."""
        for name, stream in self.log.streams().items():
            self.log.release(stream, self.oracle.lane(name).released)

    def set_policies(self) -> None:
        """As a node does when it starts."""
        if self.oracle.leading is not None:
            self.oracle.lane(self.oracle.leading)
            self.log.lead(self.log.stream(self.oracle.leading))
        for name, lane in self.oracle.lanes.items():
            if lane.policy != DEFAULT_POLICY:
                self.log.set_policy(self.log.stream(name), lane.policy)

    def drop_backlog(self, chance: random.Random) -> None:
        """An operator gives up a part of a stream."""
        names = [name for name in self.log.streams() if self.oracle.lane(name).acked]
        if names:
            name = chance.choice(names)
            lane = self.oracle.lane(name)
            first, end = sorted((chance.randint(0, lane.acked), chance.randint(0, lane.acked)))
            lane.dropped.add(first, end)
            with contextlib.suppress(LogFull, LogFailed, OSError):
                dropped = self.log.drop_backlog(self.log.stream(name), first, end)
                for start, stop in dropped:
                    demand(first <= start and stop <= end, "more is given up than was said", name, dropped)

    def rename(self, owner: NodeName) -> None:
        """Give the log another name, for the numbers that follow; the log may have no room for it."""
        commit_all(self.log)
        names = {number: name for name, number in self.log.streams().items()}
        ends = {names[number]: self.log.durable_end(number) for number in names}
        before = self.oracle.owners
        renamed = (owner, {name: end for name, end in ends.items() if end})
        self.oracle.owners = [*before, renamed]
        try:
            self.log.rename(owner, from_now_on=True)
            self.oracle.owners = [renamed]
        except LogFull:
            self.oracle.owners = before
        except LogFailed:
            return
        self.oracle.check_owner(self.log)


def act(machine: Machine, action: str, chance: random.Random) -> None:
    """What a node does with its log."""
    if action == "append":
        for _ in range(chance.choice((1, 2, 4))):
            machine.append(chance)
        machine.await_durable()
    elif action == "together":
        machine.append_together(chance)
        machine.await_durable()
    elif action == "commit":
        machine.log.committer.run_once()
    elif action == "commit all":
        commit_all(machine.log)
    elif action == "release":
        machine.release(chance)
    elif action == "housekeep":
        machine.log.committer.housekeep()
    elif action == "give up":
        machine.drop_backlog(chance)
