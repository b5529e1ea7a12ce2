"""Whatever happens to process, power and disk calls: what was acknowledged is there, unaltered, once, in order."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocols.ranges import RangeSet
from storage.segment_log import LogFailed, LogFull, LogSettings
from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.log_helpers import commit_all, open_log, read_all

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)
STREAMS = ("alpha", "beta", "gamma")


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.disk = FakeFileSystem()
        self.appended: dict[str, list[bytes]] = {}
        self.acked: dict[str, int] = {}
        self.released: dict[str, int] = {}
        self.failed = False
        self.counter = 0
        self.log = open_log(self.disk, SETTINGS)
        assert self.log.recovery.created

    @rule(name=st.sampled_from(STREAMS), count=st.integers(1, 40), size=st.sampled_from([0, 3, 40, 200]))
    def append(self, name: str, count: int, size: int) -> None:
        # Payloads that do not compress, each one of a kind.
        rest = random.Random(self.counter).randbytes(size)
        payloads = [b"%d:" % (self.counter + index) + rest for index in range(count)]
        self.counter += count
        try:
            base_seq = self.log.append(self.log.stream(name), self.counter, [b"key"] * count, payloads)
        except LogFailed:
            assert self.failed
            return
        except LogFull:
            # Refused only when the budget is really needed, and nothing was taken.
            assert self.log.stats().bytes_on_disk + self.log.pending_bytes + count * (size + 64) > 4096 * 2
            return
        known = self.appended.setdefault(name, [])
        assert base_seq == len(known)
        known += payloads
        end = len(known)

        def durable(error: BaseException | None) -> None:
            if error is None:
                assert self.acked.get(name, 0) <= end
                self.acked[name] = end

        self.log.on_durable(durable)

    @rule()
    def commit(self) -> None:
        self.log.committer.run_once()

    @rule(call=st.sampled_from(["write_at", "sync", "sync_directory", "create", "rename", "allocate", "truncate"]))
    def disk_fails_once(self, call: str) -> None:
        remaining = [call]

        def fail(name: str, path: str) -> OSError | None:
            if remaining and name == call:
                remaining.clear()
                return eio()
            return None

        self.disk.fail = fail
        commit_all(self.log)
        self.disk.fail = lambda name, path: None
        self.failed = self.log.stats().failed is not None

    @rule()
    def kill_and_reopen(self) -> None:
        self.disk.kill_process()
        self._reopen()

    @rule(seed=st.integers(0, 1 << 32))
    def cut_power_and_reopen(self, seed: int) -> None:
        self.disk = self.disk.power_cut(random.Random(seed))
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
        self.log = open_log(self.disk, SETTINGS)
        self.failed = False
        self.released.clear()
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

    @rule(name=st.sampled_from(STREAMS), fraction=st.floats(0, 1))
    def release(self, name: str, fraction: float) -> None:
        if name not in self.log.streams():
            return
        end = int(self.acked.get(name, 0) * fraction)
        self.log.release(self.log.stream(name), RangeSet([(0, end)]))
        self.released[name] = max(end, self.released.get(name, 0))

    @rule(name=st.sampled_from(STREAMS), fraction=st.floats(0, 1), bytes_max=st.sampled_from([1, 600, 1 << 20]))
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
        assert {at for at in found if at >= seq} == {at for first, end in held for at in range(max(first, seq), end)}

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        for name, number in self.log.streams().items():
            held, end = self.log.ranges(number), self.log.durable_end(number)
            assert self.acked.get(name, 0) <= end
            assert not self.log.gaps(number)
            deleted = held.missing(0, end)
            # Only a beginning may be gone, and only what was released in some life of the log.
            assert len(deleted) <= 1
            assert all(first == 0 for first, _ in deleted)
            time, seq = self.log.mark(number, 1 << 60)
            assert seq in (end, self.log.next_seq(number))
            assert time == 1 << 60 or seq == end
        # A restart of a full log begins a segment that holds the names of the streams and nothing else.
        assert self.log.stats().bytes_on_disk <= SETTINGS.budget_bytes + 256

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        commit_all(self.log)
        self.kill_and_reopen()
        for name in self.log.streams():
            self.read(name, 0.0, 1 << 20)


LogMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLogMachine = LogMachine.TestCase
