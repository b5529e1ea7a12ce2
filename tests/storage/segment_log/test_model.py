"""Whatever happens to process, power and disk calls: what was acknowledged is there, unaltered, once, in order, unless
it was released, or its stream's policy let it go and a durable gap notice says why."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import Clock, commit_all, open_log, read_all
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, StreamPolicy

SECOND = 10**9
SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)
POLICIES = {
    "alpha": StreamPolicy(),
    "beta": StreamPolicy(when_full="drop_oldest"),
    "gamma": StreamPolicy(when_full="drop_oldest", retain_s=50, retain_bytes=3000),
    "delta": StreamPolicy(retain_s=100, replicated=False),
    "epsilon": StreamPolicy(retain_bytes=2500),
}
REASONS = {
    "alpha": {GapReason.OPERATOR},
    "beta": {GapReason.OPERATOR, GapReason.BUDGET},
    "gamma": {GapReason.OPERATOR, GapReason.BUDGET, GapReason.EXPIRED},
    "delta": {GapReason.OPERATOR},
    "epsilon": {GapReason.OPERATOR},
}
"""Why each of the streams may lose an acknowledged record that was not released."""
STREAMS = st.sampled_from(sorted(POLICIES))


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.disk = FakeFileSystem()
        self.appended: dict[str, list[bytes]] = {}
        self.times: dict[str, list[int]] = {name: [] for name in POLICIES}
        self.acked: dict[str, int] = {}
        self.released: dict[str, RangeSet] = {name: RangeSet() for name in POLICIES}
        """In any life of the log: what was released once may never come back."""
        self.dropped: dict[str, RangeSet] = {name: RangeSet() for name in POLICIES}
        self.over_budget: list[tuple[str, str, int]] = []
        self.failed = False
        self.counter = 0
        self._open()
        assert self.log.recovery.created

    def _watch(self, call: str, path: str) -> OSError | None:
        """Not one call of the log finds the disk over its budget."""
        used = self.disk.used_bytes()
        if used > SETTINGS.budget_bytes:
            self.over_budget.append((call, path, used))
        return None

    def _open(self) -> None:
        self.disk.fail = self._watch
        self.log = open_log(self.disk, SETTINGS, clock=self.clock)
        for name, number in self.log.streams().items():
            self.log.set_policy(number, POLICIES[name])

    def _number(self, name: str) -> int:
        number = self.log.stream(name)
        self.log.set_policy(number, POLICIES[name])
        return number

    @rule(name=STREAMS, count=st.integers(1, 40), size=st.sampled_from([0, 3, 40, 200]))
    def append(self, name: str, count: int, size: int) -> None:
        # Payloads that do not compress, each one of a kind.
        rest = random.Random(self.counter).randbytes(size)
        payloads = [b"%d:" % (self.counter + index) + rest for index in range(count)]
        self.counter += count
        number = self._number(name)
        try:
            time = self.clock.wall()
            base_seq = self.log.append(number, time, [b"key"] * count, payloads)
        except LogFailed:
            assert self.failed
            return
        except LogFull as full:
            # Refused only when the room is really needed, and nothing was taken.
            if "of its" in str(full):
                assert POLICIES[name].retain_bytes
            else:
                used = self.log.stats().bytes_on_disk
                assert used + self.log.pending_bytes + count * (size + 64) > 4096
            return
        known = self.appended.setdefault(name, [])
        assert base_seq == len(known)
        known += payloads
        self.times[name][base_seq:] = [time] * count
        end = len(known)

        def durable(error: BaseException | None) -> None:
            if error is None:
                assert self.acked.get(name, 0) <= end
                self.acked[name] = end

        self.log.on_durable(durable)

    @rule(names=st.lists(STREAMS, min_size=1, max_size=4), commits=st.integers(3, 12))
    def load(self, names: list[str], commits: int) -> None:
        for _ in range(commits):
            for name in names:
                self.append(name, 3, 200)
            self.log.committer.run_once()

    @rule()
    def commit(self) -> None:
        self.log.committer.run_once()

    @rule(seconds=st.sampled_from([1, 30, 60, 200]))
    def time_passes(self, seconds: int) -> None:
        self.clock.ahead += seconds * SECOND

    @rule()
    def housekeep(self) -> None:
        self.log.committer.housekeep()

    @rule(name=STREAMS, first=st.floats(0, 1), length=st.floats(0, 1))
    def drop_backlog(self, name: str, first: float, length: float) -> None:
        if name not in self.log.streams() or self.failed:
            return
        number = self.log.streams()[name]
        start = int(self.log.durable_end(number) * first)
        end = min(self.log.durable_end(number), start + int(self.log.durable_end(number) * length))
        held = self.log.ranges(number)
        try:
            dropped = self.log.drop_backlog(number, start, end)
        except LogFull:
            return  # a full log has no room to note short ranges
        for at, stop in dropped:
            assert start <= at < stop <= end
            assert held.covers(at, stop)
            self.dropped[name].add(at, stop)

    @rule(call=st.sampled_from(["write_at", "sync", "sync_directory", "create", "rename", "allocate", "truncate"]))
    def disk_fails_once(self, call: str) -> None:
        remaining = [call]

        def fail(name: str, path: str) -> OSError | None:
            if remaining and name == call:
                remaining.clear()
                return eio()
            return None

        self.disk.fail = fail
        self.log.committer.housekeep()
        commit_all(self.log)
        self.disk.fail = self._watch
        self.failed = self.log.stats().failed is not None

    @rule()
    def kill_and_reopen(self) -> None:
        self.disk.kill_process()
        self._reopen()

    @rule(seed=st.integers(0, 1 << 32))
    def cut_power_and_reopen(self, seed: int) -> None:
        self.disk = self.disk.power_cut(random.Random(seed))
        self._reopen()

    @rule(seed=st.integers(0, 1 << 32), call=st.integers(1, 60))
    def cut_power_in_the_middle_of_work_and_reopen(self, seed: int, call: int) -> None:
        left = [call]
        cut: list[FakeFileSystem] = []

        def fail(name: str, path: str) -> OSError | None:
            left[0] -= 1
            if left[0] == 0:
                cut.append(self.disk.power_cut(random.Random(seed)))
            return eio() if left[0] <= 0 else None

        self.disk.fail = fail
        self.log.committer.housekeep()
        commit_all(self.log)
        self.disk = cut[0] if cut else self.disk.power_cut(random.Random(seed))
        self._reopen()

    @rule(seed=st.integers(0, 1 << 32))
    def kill_reopen_and_cut_power(self, seed: int) -> None:
        self.kill_and_reopen()
        self.cut_power_and_reopen(seed)

    @precondition(lambda self: not self.failed)
    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        assert all(self.acked.get(name, 0) == len(payloads) for name, payloads in self.appended.items())
        self._reopen()
        assert self.log.recovery.torn_bytes == 0

    def _reopen(self) -> None:
        self.over_budget.clear()
        self._open()
        self.failed = False
        report = self.log.recovery
        assert not report.damaged
        assert not report.gaps
        for name, number in self.log.streams().items():
            known = self.appended.setdefault(name, [])
            end = self.log.durable_end(number)
            assert self.acked.get(name, 0) <= end <= len(known)
            assert self.log.next_seq(number) == end == report.lanes[name]
            # What survived without an ack is durable now, and readers may act on it.
            del known[end:]
            self.acked[name] = end
        for name, payloads in self.appended.items():
            if name not in self.log.streams():
                assert not self.acked.get(name)
                payloads.clear()

    @rule(name=STREAMS, first=st.sampled_from([0.0, 0.0, 0.0, 0.3]), fraction=st.floats(0, 1))
    def release(self, name: str, first: float, fraction: float) -> None:
        if name not in self.log.streams() or not POLICIES[name].replicated:
            return
        end = int(self.acked.get(name, 0) * fraction)
        ranges = RangeSet([(min(end, int(self.acked.get(name, 0) * first)), end)])
        self.log.release(self.log.stream(name), ranges)
        self.released[name].update(ranges)

    @rule(name=STREAMS, fraction=st.floats(0, 1), bytes_max=st.sampled_from([1, 600, 1 << 20]))
    def read(self, name: str, fraction: float, bytes_max: int) -> None:
        number = self.log.streams().get(name)
        if number is None:
            return
        held = self.log.ranges(number)
        seq = int(self.log.durable_end(number) * fraction)
        found = read_all(self.log, number, seq, bytes_max=bytes_max)
        if seq in held:
            assert seq in found
        for at, payload in found.items():
            assert payload == self.appended[name][at]
        asked = {at for first, end in held for at in range(max(first, seq), end)}
        assert asked <= {at for at in found if at >= seq}
        # Batches come whole: what is not held any more may come along with what is, never alone.
        if not asked:
            assert not found

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        assert not self.over_budget
        for name, number in self.log.streams().items():
            held, gaps, acked = self.log.ranges(number), self.log.gaps(number), self.acked.get(name, 0)
            assert acked <= self.log.durable_end(number)
            accounted = held.copy()
            for gap in gaps:
                assert gap.reason in REASONS[name]
                assert not any(accounted.covers(at, at + 1) for at in range(gap.first, gap.end))
                accounted.add(gap.first, gap.end)
                if gap.reason == GapReason.OPERATOR:
                    assert self.dropped[name].covers(gap.first, gap.end)
            assert all(before.end <= after.first for before, after in pairwise(gaps))
            for first, end in accounted.missing(0, acked):
                if POLICIES[name].replicated:
                    assert self.released[name].covers(first, end)
                else:
                    retain_s = POLICIES[name].retain_s
                    assert retain_s
                    assert all(
                        self.times[name][seq] + retain_s * SECOND < self.clock.wall() for seq in range(first, end)
                    )
            snapshot = self.log.snapshot(number)
            assert (snapshot.held, snapshot.gaps) == (held, gaps)
            assert list(snapshot.gone) == accounted.missing(0, self.log.durable_end(number))
            time, seq = self.log.mark(number, 1 << 60)
            assert seq in (self.log.durable_end(number), self.log.next_seq(number))
            assert time == 1 << 60 or seq == self.log.durable_end(number)
        assert self.log.stats().bytes_on_disk == self.disk.used_bytes() or self.failed
        self._sizes_are_exact()

    def _sizes_are_exact(self) -> None:
        for name, number in self.log.streams().items():
            lane = self.log._state.lanes[number]
            spans = [span for segment in self.log._state.segments for span in segment.index.spans_of(number)]
            assert lane.bytes == sum(span.live_size for span in spans)
            if POLICIES[name].retain_bytes and not self.failed:
                assert lane.queued_bytes >= 0

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        commit_all(self.log)
        self.kill_and_reopen()
        for name in self.log.streams():
            self.read(name, 0.0, 1 << 20)


LogMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLogMachine = LogMachine.TestCase
