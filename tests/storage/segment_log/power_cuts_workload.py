"""What a log must still say after anything: kept beside the log while it runs, and held against it afterwards."""

from __future__ import annotations

import contextlib
import errno
import random
import struct
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

from tests.storage.fakes import CALLS, ERRNOS, MUTATING_CALLS, FailureHook, FakeFileSystem, injected, no_failure
from tests.storage.segment_log.helpers import Clock, commit_all, open_log
from weft.protocols import batch
from weft.protocols.batch import ClockState, HeaderPairs
from weft.protocols.lane import NodeName
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapNotice, GapReason
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, SegmentLog, index, pending
from weft.storage.segment_log.log import AskedRun
from weft.storage.segment_log.settings import BATCH_OVERHEAD_BYTES, DEFAULT_POLICY, StreamPolicy, run_bytes


class Violation(BaseException):
    """A promise of the log was broken. No ``Exception``: the log turns those of its disk into a failure of its own."""


class Known(NamedTuple):
    """A record as it was given to the log."""

    time: int
    key: bytes
    payload: bytes
    headers: HeaderPairs
    flags: int


@dataclass
class Lane:
    """One stream as its writers know it."""

    records: list[Known] = field(default_factory=list)
    """Everything appended; the index is the sequence number."""
    acked: int = 0
    """Everything below was said to be durable."""
    ends: tuple[int, ...] = (0,)
    """Where commits ended: no batch goes across these."""
    released: RangeSet = field(default_factory=RangeSet)
    """In some life of the log: these may be gone without a word."""
    noticed: RangeSet = field(default_factory=RangeSet)
    """Durable gap notices, once seen."""
    dropped: RangeSet = field(default_factory=RangeSet)
    """By an operator's word."""
    policy: StreamPolicy = DEFAULT_POLICY
    may_rot: bool = False
    may_be_unreadable: bool = False
    """How many of its records there were the disk cannot say, so it continues after all that there may have been."""

    def fork(self) -> Lane:
        copies = (self.released.copy(), self.noticed.copy(), self.dropped.copy())
        return Lane(self.records, self.acked, self.ends, *copies, self.policy, self.may_rot, self.may_be_unreadable)

    def acknowledge(self, end: int, durable_end: int) -> None:
        """Everything below ``end`` was said to be durable, and the log's last batch ends at ``durable_end``."""
        self.acked = max(self.acked, end)
        if durable_end > self.ends[-1]:
            self.ends += (durable_end,)

    def excuses(self, gap: GapNotice) -> bool:
        """Return whether the log may give up these records that were not released."""
        policy = self.policy
        if gap.reason == GapReason.OPERATOR:
            return self.dropped.covers(gap.first, gap.end)
        return {
            GapReason.BUDGET: policy.when_full == "drop_oldest",
            GapReason.EXPIRED: policy.retain_s is not None and policy.replicated,
            GapReason.CORRUPTION: self.may_rot,
        }[GapReason(gap.reason)]

    @property
    def forgets(self) -> bool:
        """Return whether old records may go without notice, and those before them come back: no hub waits for them."""
        return not self.policy.replicated


class Led(NamedTuple):
    """Records of one commit: a log with some of the follower's has all of the leader's."""

    leader: str
    end: int
    follower: str
    begin: int


def demand(holds: bool, promise: str, *facts: object) -> None:
    if not holds:
        raise Violation(": ".join([promise, *map(str, facts)]))


Owned = tuple[NodeName | None, dict[str, int]]
"""Whose a log is, and the first number of each stream under that name."""


class Oracle:
    """All lanes of one log."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.leading: str | None = None
        """The stream whose batches stand first in their commits."""
        self._led: list[Led] = []
        self.owners: list[Owned] = []
        """What the log may say of whose it is: one, or two while it is renamed; nothing when it has no owner."""

    def fork(self) -> Oracle:
        """What would be known after a power cut now. The records are shared until ``adopt``."""
        other = Oracle()
        other.lanes = {name: lane.fork() for name, lane in self.lanes.items()}
        other.leading, other._led = self.leading, list(self._led)
        other.owners = list(self.owners)
        return other

    def lane(self, name: str) -> Lane:
        return self.lanes.setdefault(name, Lane())

    def belongs_together(self, begins: dict[str, int]) -> None:
        """These streams' records from there on were appended for one commit."""
        leader = self.leading
        if leader in begins:
            assert leader is not None
            end = len(self.lane(leader).records)
            self._led += [Led(leader, end, name, begin) for name, begin in begins.items() if name != leader]

    def check_reopened(self, log: SegmentLog) -> None:
        """Check after a restart that nothing acknowledged is missing and every record there was appended."""
        numbers = log.streams()
        self.check_owner(log)
        for name, lane in self.lanes.items():
            if name not in numbers:
                demand(lane.acked == 0, "a stream with acknowledged records is gone", name, lane.acked)
                continue
            end = log.durable_end(numbers[name])
            demand(end == log.next_seq(numbers[name]), "the next number is not the durable end", name)
            demand(end >= lane.acked, "acknowledged records are gone from the end", name, end, lane.acked)
            invented = end > len(lane.records) and not lane.may_be_unreadable
            demand(not invented, "records that nobody appended", name, end, len(lane.records))
        ends = {name: log.durable_end(number) for name, number in numbers.items()}
        for led in self._led:
            whole = ends.get(led.follower, 0) <= led.begin or ends.get(led.leader, 0) >= led.end
            demand(whole, "what leads a commit is gone, what follows it is there", led)
        self._led.clear()
        demand(set(numbers) <= set(self.lanes), "streams that nobody declared", set(numbers) - set(self.lanes))

    def check_owner(self, log: SegmentLog) -> None:
        """The log is whose it was, from the numbers on that it was given with."""
        if self.owners:
            names = {number: name for name, number in log.streams().items()}
            found = (log.owner, {names[number]: begin for number, begin in log.begins().items()})
            demand(found in self.owners, "the log is another's, or from other numbers on", found, self.owners)
            self.owners = [found]

    def adopt(self, log: SegmentLog) -> None:
        """From now on what survived without an ack counts: readers may have acted on it."""
        numbers = log.streams()
        for name, lane in self.lanes.items():
            end = log.durable_end(numbers[name]) if name in numbers else 0
            lane.records = lane.records[:end]
            lane.acknowledge(end, end)

    def check(self, log: SegmentLog, chance: random.Random) -> None:
        """Every durable number is held, noticed or was released; what is held reads as it was appended, once."""
        for name, number in log.streams().items():
            lane, held, end = self.lanes[name], log.ranges(number), log.durable_end(number)
            gaps = RangeSet()
            for gap in log.gaps(number):
                demand(gap.end <= end, "a gap notice beyond the end", name, gap, end)
                demand(lane.excuses(gap), "a gap that nothing excuses", name, gap, lane.policy)
                gaps.add(gap.first, gap.end)
            for first, stop in gaps:
                demand(not _overlaps(held, first, stop), "records are held that a notice gives up", name, first, stop)
            reported = gaps.copy()
            reported.update(lane.released)
            for first, stop in lane.noticed:
                demand(reported.covers(first, stop), "a gap notice is gone", name, first, stop)
            reported.update(held)
            if lane.forgets:
                reported.add(0, end)
            demand(reported.covers(0, end), "records are missing without a notice", name, reported.missing(0, end))
            lane.noticed.update(gaps)
            gone = log.snapshot(number).gone
            for first, stop in gone:
                demand(not _overlaps(held, first, stop), "what is said to be gone is held", name, first, stop)
                excused = lane.forgets or lane.released.covers(first, stop)
                demand(excused, "what nobody released is said to be gone rightly", name, first, stop)
            self._check_reads(log, number, lane, held, chance)

    def _check_reads(self, log: SegmentLog, number: int, lane: Lane, held: RangeSet, chance: random.Random) -> None:
        found = RangeSet()
        seq, bytes_max = 0, chance.choice((1, 600, 1 << 20))
        while batches := log.read(number, seq, bytes_max):
            for data in batches:
                header = batch.verify(data)
                demand(header.base_seq >= seq, "a record is read twice", header)
                demand(header.end_seq <= len(lane.records), "a batch that nobody appended", header)
                _same(data, header, lane.records)
                found.add(header.base_seq, header.end_seq)
                seq = header.end_seq
        for first, end in held:
            demand(found.covers(first, end), "what is held cannot be read", list(held), list(found))
        for gap in log.gaps(number):
            # A batch is read whole, also the part of it that was released and forgotten.
            demand(not _overlaps(found, gap.first, gap.end), "what a notice gives up is read", gap, list(found))


def _overlaps(ranges: RangeSet, first: int, end: int) -> bool:
    return sum(stop - start for start, stop in ranges.missing(first, end)) < end - first


def _same(data: bytes, header: batch.BatchHeader, records: list[Known]) -> None:
    expected = records[header.base_seq : header.end_seq]
    columns = batch.decode_columns(data, header)
    index, offsets = array("I"), array("I")
    index.frombytes(columns.key_index)
    offsets.frombytes(columns.payload_offsets)
    lengths = [0]
    for record in expected:
        lengths.append(lengths[-1] + len(record.payload))
    same = (
        bytes(columns.times) == struct.pack(f"<{len(expected)}q", *(record.time for record in expected))
        and [columns.keys[at] for at in index] == [record.key for record in expected]
        and offsets.tolist() == lengths
        and bytes(columns.payload) == b"".join(record.payload for record in expected)
        and {at: pairs for at, pairs in columns.headers.items() if pairs}
        == {at: record.headers for at, record in enumerate(expected) if record.headers}
        and (list(columns.flags) if columns.flags else [0] * len(expected)) == [record.flags for record in expected]
    )
    demand(same, "records read differently from what was appended", header)


# --- A log with its writers, a hub and an operator, who draw what they do from one source of randomness


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


# --- One seed: a random workload on the fake disk, and the power cut again and again while it runs
#
# Before a call that changes the disk, and while that disk is recovered, and while *that* recovery is recovered, copies
# of the disk are made as a power cut may leave them; on each a log is opened and held against the oracle. Every step
# draws from randomness of its own, so that steps can be left out to make a failure shorter (``keep``).


STEPS = 60
DEPTH_MAX = 3
"""Power cuts in the recovery of a power cut in a recovery."""
POLICIES = (
    StreamPolicy(when_full="drop_oldest"),
    StreamPolicy(when_full="drop_oldest", retain_bytes=3000),
    StreamPolicy(retain_bytes=6000),
    StreamPolicy(retain_s=0.001),
    StreamPolicy(replicated=False, retain_s=0.001),
    StreamPolicy(when_full="drop_oldest", replicated=False, retain_bytes=4000),
)


NAMES = (NodeName("t", "a"), NodeName("t", "b"), NodeName("u", "a"))
"""Whose log it is, in turn."""
MEANWHILE = ("append", "append", "together", "release", "give up")
"""What the owner's thread does between the calls of a commit."""


@contextlib.contextmanager
def small_constants() -> Iterator[None]:
    """With small records: several commits in the queue, several batches of a run, several index points of a stream."""
    with (
        patch.multiple(pending, COMMIT_BYTES_MAX=1500, BATCH_BYTES_MAX=900, BATCH_RECORDS_MAX=42),
        patch.object(index, "POINT_SPACING_BYTES", 300),
    ):
        yield


class Step(NamedTuple):
    """One action of the workload."""

    number: int
    action: str


class PowerCuts:
    """All cuts of one seed.

    Args:
        keep: only these of its steps.
        plain: with the constants and the clock of a node, and one thread.
    """

    def __init__(self, seed: int, *, keep: Collection[int] | None = None, plain: bool = False) -> None:
        chance = random.Random(seed)
        self.seed = seed
        self.cuts = 0
        actions = chance.choice((_ACTIONS, _ACTIONS, _WITHOUT_HUB))
        taken = chance.choices(list(actions), list(actions.values()), k=STEPS)
        self.steps = [Step(number, action) for number, action in enumerate(taken)]
        self.steps = [step for step in self.steps if keep is None or step.number in keep]
        segment_bytes = chance.choice((4096, 4096, 6000))
        self.settings = LogSettings(
            segment_bytes=segment_bytes,
            budget_bytes=chance.choice((4, 4, 7)) * segment_bytes,
            tail_bytes=chance.choice((0, 1500)),
            pending_bytes_max=1 << 16,
            compression_level=chance.choice((1, None)),
        )
        self.policies = {name: chance.choice(POLICIES) for name in STREAMS if chance.random() < 0.5}
        if actions is _WITHOUT_HUB:
            # One stream that refuses would end the life of all.
            self.policies = {name: chance.choice(POLICIES[:2]) for name in STREAMS}
        self.rate = chance.choice((0.3, 1.0))
        """Share of the disk's calls at which the power is cut."""
        self.trace: list[str] = []
        """Where the current cut is, for the person who looks for the mistake."""
        self._clock = Clock()
        if chance.random() < 0.2 and not plain:
            self._clock.state = ClockState.UNSYNCED
        self._constants = small_constants if chance.random() < 0.3 and not plain else contextlib.nullcontext
        self._is_interrupted = chance.random() < 0.5 and not plain
        """Whether the owner's thread continues while a commit is being written."""
        self._leading = None if plain else chance.choice((None, *STREAMS[:2]))
        self._calls = 0
        self._step = 0
        # Drawn apart, so that the lives of seeds that were kept stay as they were.
        names = random.Random(f"{seed}:names")
        self._is_owned = seed % 2 == 0 and not plain
        self._renamed_at = {names.randrange(STEPS) for _ in range(3)} if self._is_owned else set()

    def run(self) -> int:
        """All steps and their cuts. Returns the number of cuts.

        Raises:
            Violation: a promise was broken, with the way to do it again.
        """
        try:
            with self._constants():
                self._run()
        except (Exception, Violation) as error:
            kept = ",".join(str(step.number) for step in self.steps)
            text = error if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            raise Violation(
                f"{text}\n  at {' > '.join(self.trace)}\n"
                f"  again: python -m tests.storage.segment_log.power_cuts --replay {self.seed} --keep {kept}"
            ) from error
        return self.cuts

    def _run(self) -> None:
        disk, oracle = FakeFileSystem(), Oracle()
        oracle.leading = self._leading
        for name, policy in self.policies.items():
            oracle.lane(name).policy = policy
        if self._is_owned:
            oracle.owners = [(NAMES[0], {})]
        with self._in("the first start"), self._cutting(disk, oracle, 0):
            machine = Machine(disk, oracle, self._open(disk, oracle), self._clock.wall)
            machine.set_policies()
        for step in self.steps:
            self._step, self._calls = step.number, 0
            with self._in(f"step {step.number} {step.action}"):
                if step.number in self._renamed_at:
                    self._rename(machine, NAMES[step.number % len(NAMES)])
                self._take(machine, step.action, random.Random(f"{self.seed}:{step.number}"))
                machine.oracle.check(machine.log, random.Random(step.number))

    @contextlib.contextmanager
    def _in(self, place: str) -> Iterator[None]:
        self.trace.append(place)
        yield
        self.trace.pop()

    def _open(self, disk: FakeFileSystem, oracle: Oracle) -> SegmentLog:
        # While a rename is under way either name may be the log's: then it is opened whosever it is.
        owner = oracle.owners[0][0] if len(oracle.owners) == 1 else None
        return open_log(disk, self.settings, clock=self._clock, owner=owner)

    def _rename(self, machine: Machine, name: NodeName) -> None:
        with self._in(f"renamed to {name}"), self._cutting(machine.disk, machine.oracle, 0):
            machine.rename(name)
        demand(machine.log.failed is None, "the log failed on a disk that did not", machine.log.failed)

    # --- steps

    def _take(self, machine: Machine, action: str, chance: random.Random) -> None:
        meanwhile: FailureHook = no_failure
        if self._is_interrupted and action in ("commit", "commit all", "housekeep"):
            meanwhile = self._meanwhile(machine, random.Random(f"{self.seed}:{self._step}:meanwhile"))
        with self._cutting(machine.disk, machine.oracle, 0, meanwhile):
            act(machine, action, chance)
        demand(machine.log.failed is None, "the log failed on a disk that did not", machine.log.failed)
        if action == "close":
            with self._cutting(machine.disk, machine.oracle, 0), contextlib.suppress(OSError):
                machine.log.close()
        elif action == "failing call":
            self._fail(machine, chance)
            self._restart(machine, chance)
        elif action == "power cut":
            machine.disk = machine.disk.power_cut(chance)
            self.cuts += 1
        elif action == "full disk":
            machine.disk.capacity = chance.choice((None, machine.disk.used_bytes() + chance.randrange(9000)))
            if chance.random() < 0.5:
                machine.disk.capacity = 0
                with self._cutting(machine.disk, machine.oracle, 0):
                    act(machine, "housekeep", chance)
                    act(machine, "commit all", chance)
                demand(machine.log.failed is None, "the log failed for want of space", machine.log.failed)
                machine.disk.capacity = None
        if action in ("close", "kill", "power cut") or machine.log.failed:
            self._restart(machine, chance)

    def _meanwhile(self, machine: Machine, chance: random.Random) -> FailureHook:
        """Between two calls of a commit that do not hold the log's lock, whatever its other threads do."""
        busy = False

        def resume(call: str, path: str) -> None:
            nonlocal busy
            is_locked = machine.log._state.lock._is_owned()  # type: ignore[attr-defined]
            if call not in MUTATING_CALLS or busy or is_locked or chance.random() > 0.15:
                return
            busy = True
            with self._in(f"meanwhile, before {call}"):
                act(machine, chance.choice(MEANWHILE), chance)
            busy = False

        return resume

    def _fail(self, machine: Machine, chance: random.Random) -> None:
        """From some call on, one kind of call fails some times; then the process is killed."""
        call = chance.choice(CALLS if chance.random() < 0.3 else sorted(MUTATING_CALLS))
        number = chance.choice(ERRNOS)
        skip, times = chance.randrange(3), chance.choice((1, 1, 2, 50))
        if call == "read_at" and number == errno.EIO:
            times = 1  # more often is a bad sector: damage, which a log may lose records to

        def fail(name: str, path: str) -> OSError | None:
            nonlocal skip, times
            if name != call or times == 0:
                return None
            if skip:
                skip -= 1
                return None
            times -= 1
            return injected(number)

        with self._in(f"{call} fails with errno {number}"), self._cutting(machine.disk, machine.oracle, 0, fail):
            for _ in range(3):
                act(machine, "append", chance)
                act(machine, "commit", chance)
            with contextlib.suppress(OSError, LogFailed):
                machine.log.shortage()
                for stream in machine.log.streams().values():
                    machine.log.read(stream, 0, 1 << 16)
            machine.disk.drop_locks()
            with contextlib.suppress(LogFailed):
                self._open(machine.disk, machine.oracle)

    def _restart(self, machine: Machine, chance: random.Random) -> None:
        machine.disk.kill_process()
        with self._in("restart"):
            machine.log = self._recover(machine.disk, machine.oracle, chance, 0)
        machine.set_policies()
        if chance.random() < 0.8:
            machine.release_again()

    # --- cuts

    @contextlib.contextmanager
    def _cutting(
        self, disk: FakeFileSystem, oracle: Oracle, depth: int, fail: FailureHook = no_failure
    ) -> Iterator[None]:
        """While this lasts, calls of the disk may be the last before the power is cut."""

        def before(call: str, path: str) -> OSError | None:
            if call in MUTATING_CALLS:
                self._calls += 1
                self._check_budget(disk)
                chance = random.Random((self.seed << 24) + (self._step << 16) + self._calls)
                rate = self.rate if depth == 0 else 0.1
                if chance.random() < (rate if disk.is_dirty else rate / 10):
                    with self._in(f"cut {self._calls} before {call} {path}"):
                        self._cut(disk, oracle.fork(), chance, depth)
            return fail(call, path)

        disk.fail = before
        try:
            yield
        finally:
            disk.fail = no_failure

    def _check_budget(self, disk: FakeFileSystem) -> None:
        used, budget = disk.used_bytes(), self.settings.budget_bytes
        demand(used <= budget, "over the budget", used, budget)

    def _cut(self, disk: FakeFileSystem, oracle: Oracle, chance: random.Random, depth: int) -> None:
        try:
            self._cut_and_look(disk, oracle, chance, depth)
        except Exception as error:
            # This is called from within another log, which must not take it for a failure of its disk.
            raise Violation(f"{type(error).__name__} after a power cut: {error}") from error

    def _cut_and_look(self, disk: FakeFileSystem, oracle: Oracle, chance: random.Random, depth: int) -> None:
        self.cuts += 1
        after = disk.power_cut(chance)
        log = self._recover(after, oracle, chance, depth + 1)
        if chance.random() < 0.1 and depth < DEPTH_MAX:
            # Life continues, and the power is cut once more.
            machine = Machine(after, oracle, log, self._clock.wall)
            machine.set_policies()
            machine.release_again()
            with self._in("life after it"):
                after.fail = lambda call, path: self._check_budget(after)
                for action in ("append", "release", "housekeep", "commit", "append"):
                    act(machine, action, chance)
                after.fail = no_failure
            with self._in("life after it, cut again"):
                self._cut(after, oracle.fork(), chance, depth + 1)

    def _recover(self, disk: FakeFileSystem, oracle: Oracle, chance: random.Random, depth: int) -> SegmentLog:
        """Open the log, with the power cut now and then meanwhile, and hold it against the oracle."""
        cutting = self._cutting(disk, oracle, depth) if depth < DEPTH_MAX else contextlib.nullcontext()
        with cutting:
            try:
                log = self._open(disk, oracle)
            except LogFailed:
                demand(disk.capacity is not None, "the log does not open by itself")
                disk.capacity = None
                disk.drop_locks()
                log = self._open(disk, oracle)
        report = log.recovery
        demand(not report.damaged and not report.gaps, "recovery found damage where there was none", report)
        oracle.check_reopened(log)
        oracle.adopt(log)
        oracle.check(log, chance)
        return log


_ACTIONS = {
    "append": 14,
    "together": 1,
    "commit": 8,
    "commit all": 3,
    "release": 5,
    "close": 1,
    "kill": 1,
    "power cut": 1,
    "failing call": 3,
    "full disk": 1,
    "housekeep": 2,
    "give up": 0.3,
}
_WITHOUT_HUB = {"append": 14, "commit all": 12, "kill": 1, "power cut": 1, "housekeep": 1, "release": 0.3}
