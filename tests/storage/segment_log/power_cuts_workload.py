"""One seed: a random workload on the fake disk, and the power cut again and again while it runs.

Before a call that changes the disk, and while that disk is recovered, and while *that* recovery is recovered, copies of
the disk are made as a power cut may leave them; on each a log is opened and held against the oracle. Every step draws
from randomness of its own, so that steps can be left out to make a failure shorter (``keep``).
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Collection, Iterator
from typing import NamedTuple
from unittest.mock import patch

from tests.storage.fakes import CALLS, ERRNOS, MUTATING_CALLS, FailureHook, FakeFileSystem, injected, no_failure
from tests.storage.segment_log.helpers import Clock, open_log
from tests.storage.segment_log.power_cuts_machine import STREAMS, Machine, act
from tests.storage.segment_log.power_cuts_oracle import Oracle, Violation, demand
from weft.protocols.batch import ClockState
from weft.protocols.lane import NodeName
from weft.storage.segment_log import LogFailed, LogSettings, SegmentLog, index, pending
from weft.storage.segment_log.settings import StreamPolicy

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
