"""Measures what each test costs: processor time of the test and of every process that it starts, and the rest: waits.

A pytest plugin, which ``--costs-to FILE`` and ``--budget SECONDS`` turn on. Each worker measures its own tests; the
process that started the workers puts the figures together. Linux only: it reads ``/proc``.

Processor time of a process that still runs, such as the Java runtime of a Spark session, is charged to the test during
which it was spent, also where another test started the process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import msgspec
import pytest

from tests.costs.causes import cause_of
from tests.costs.figures import Cost, Costs
from tests.costs.known import grown
from tests.costs.orphans import Orphans
from tests.costs.processes import children, command, spent
from tests.costs.speed import sample_s
from tests.support import forked

LOOK_S = 0.02
"""How old a look at running processes may be when a test begins or ends: two of the ticks that the kernel counts in."""


class Processes:
    """The processor time of every process that this one has started."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        """Cause -> seconds since the last look."""
        self.started: dict[str, int] = {}
        self.counted: dict[str, float] = {}
        """Process (`processes.identity`) -> seconds of it that are counted, of those that had not ended at a look."""
        self._causes: dict[int, str] = {}
        self._seen: dict[int, float] = {}
        """Process -> seconds that are counted already, of it and of those below it."""
        self._own = os.getpid()

    def watch(self) -> None:
        """Have every process that Python starts and waits for here pass by."""
        make, wait = subprocess.Popen._execute_child, os.waitpid  # type: ignore[attr-defined]

        def execute(popen: Any, args: Any, *rest: Any) -> None:
            make(popen, args, *rest)
            self.note(popen.pid, [args] if isinstance(args, str) else [os.fsdecode(each) for each in args])

        def waited(pid: int, options: int) -> tuple[int, int]:
            ended, status, usage = os.wait4(pid, options)
            if ended:
                self._end(ended, usage)
            return ended, status

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
        forked.listeners.append(self.note)
        os.waitpid = waited
        if hasattr(subprocess, "_del_safe"):
            subprocess._del_safe.waitpid = staticmethod(waited)
        assert wait is not waited

    def note(self, pid: int, started: Sequence[str]) -> None:
        """A process was started."""
        if os.getpid() != self._own:
            return
        self._causes[pid] = cause = cause_of(started)
        self._seen.pop(pid, None)
        self.started[cause] = self.started.get(cause, 0) + 1

    def look(self) -> None:
        """Charge what running processes have spent since the last look."""
        for pid in children(self._own):
            cause = self._causes.get(pid)
            if cause is None:
                cause = self._causes[pid] = cause_of(command(pid))
            self._charge(pid, spent(pid, self.counted))

    def _end(self, pid: int, usage: resource.struct_rusage) -> None:
        if os.getpid() != self._own:
            return
        self._charge(pid, usage.ru_utime + usage.ru_stime)
        self._seen.pop(pid, None)
        self._causes.pop(pid, None)

    def _charge(self, pid: int, total: float) -> None:
        more = total - self._seen.get(pid, 0.0)
        if more > 0:
            cause = self._causes.get(pid, "other processes")
            self.spent[cause] = self.spent.get(cause, 0.0) + more
            self._seen[pid] = total


class Meter:
    """The plugin of a process of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._to: str | None = config.getoption("--costs-to")
        self._before: str | None = config.getoption("--costs-before")
        self._budget_s: float | None = config.getoption("--budget")
        self._over: list[str] = []
        self._config = config
        self._began = time.monotonic()
        self._costs = Costs()
        self._worker = hasattr(config, "workerinput")
        self._measures = self._worker or not getattr(config.option, "numprocesses", None)
        self._processes = Processes()
        self._orphans = None if self._measures else Orphans()
        self._counted: dict[str, float] = {}
        self._slept = 0.0
        self._at = (0.0, 0.0, 0.0)
        self._looked = 0.0
        if self._measures:
            self._processes.watch()
            self._count_sleeps()

    def _count_sleeps(self) -> None:
        sleep = time.sleep

        def counted(seconds: SupportsIndex | float) -> None:
            started = time.monotonic()
            try:
                sleep(seconds)
            finally:
                if threading.current_thread() is threading.main_thread():
                    self._slept += time.monotonic() - started

        time.sleep = counted

    def _read(self, *, look: bool = True) -> Cost:
        """Return what was taken since the last reading.

        Args:
            look: at running processes, also when that was done just before: what they took meanwhile is of another
                file. A look at a Java with its threads takes longer than most tests.
        """
        at = time.monotonic()
        if look or at - self._looked >= LOOK_S:
            self._processes.look()
            self._looked = at
        wall, own, slept = now = (time.monotonic(), time.process_time(), self._slept)
        before, self._at = self._at, now
        cost = Cost(
            wall_s=wall - before[0], own_s=own - before[1], sleeps_s=slept - before[2],
            started=self._processes.started, others_s=self._processes.spent,
        )  # fmt: skip
        self._processes.started, self._processes.spent = {}, {}
        return cost

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._between(item.nodeid.partition("::")[0])
        try:
            return (yield)
        finally:
            cost = self._read(look=False)
            cost.tests = 1
            if hasattr(getattr(item, "obj", None), "hypothesis"):
                cost.own_s, cost.properties_s = 0.0, cost.own_s
            self._costs.files.setdefault(item.nodeid.partition("::")[0], Cost()).add(cost)
            if max(cost.processor_s, cost.waits_s) >= 1:
                name = item.nodeid.partition("@")[0]
                self._costs.tests[name] = (round(cost.processor_s, 2), round(cost.waits_s, 2))

    def _between(self, file: str) -> None:
        is_next = file not in self._costs.files
        self._costs.between_s += self._read(look=is_next).processor_s
        if is_next:
            self._costs.samples += 1
            self._costs.samples_s += sample_s()
            wall, _, slept = self._at
            self._at = (wall, time.process_time(), slept)  # what the sample took is no test's

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker has ended: its figures."""
        if made := getattr(node, "workeroutput", {}).get("costs"):
            self._costs.add(msgspec.json.decode(made, type=Costs))
            self._counted |= node.workeroutput["counted"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._measures:
            self._costs.between_s += self._read().processor_s
        if self._worker:
            self._config.workeroutput["costs"] = msgspec.json.encode(self._costs).decode()  # type: ignore[attr-defined]
            self._config.workeroutput["counted"] = self._processes.counted  # type: ignore[attr-defined]
            return
        if self._orphans is not None:
            self._costs.orphans_s = self._orphans.unseen_s(self._counted)
        self._costs.wall_s = time.monotonic() - self._began
        if self._budget_s is not None:
            self._over = self._over_budget(self._budget_s)
        # In CI alone, which keeps the figures: elsewhere the machine may be busy.
        if self._over and self._to is not None and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _over_budget(self, budget_s: float) -> list[str]:
        """Compare with the budget; return what to print where it is passed."""
        total_s, slow = self._costs.processor_s, self._before is not None
        if self._before is not None:
            total_s += msgspec.json.decode(Path(self._before).read_bytes(), type=Costs).processor_s
        if total_s <= budget_s:
            return []
        told = f"The tests took {total_s:.0f} s of processor time, of {budget_s:.0f} s that they may take."
        return [told, "These files have grown most:", *grown(self._costs, slow=slow)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._over:
            terminalreporter.section("over the budget", red=True)
            terminalreporter.line("\n".join(self._over))
        if not self._worker:
            costs = self._costs
            told = (
                f"{costs.processor_s:.0f} s of processor time (this machine takes {costs.slowness:.2f} times as much)"
            )
            terminalreporter.line(f"{told}, {costs.wall_s:.0f} s on the clock")

    def pytest_unconfigure(self) -> None:
        if not self._worker and self._to is not None:
            Path(self._to).write_bytes(msgspec.json.format(msgspec.json.encode(self._costs, order="sorted"), indent=1))
