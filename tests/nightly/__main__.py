"""Makes the long runs, as ``./run nightly`` does.

    python -m tests.nightly --hours 8                    continue where the last night was stopped, else begin a new one
    python -m tests.nightly --hours 0.1 --jobs node      only some of them
    python -m tests.nightly repeat simulation 4711       one seed again
    python -m tests.nightly --hours 2 --plan             only show what a night would make

Each row of tests/nightly/timetable.py gets its part of the hours. Ctrl-C, or a kill, loses at most the slices under
way: the next call makes them again. At the end of its hours a night writes bench/results/nightly-DATE.json: what each
row reached of its plan, how fast, and why not more. The exit status is 1 when a seed failed, 130 when the night was
stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from bench.common import RESULTS, write_results
from tests.nightly.jobs import Failure, Outcome, run_slice
from tests.nightly.state import Night, Slice, plan_table, reached, table
from tests.nightly.timetable import JOBS

ROOT = Path(__file__).parents[2]
STATE = ROOT / "nightly.json"
WIDTH = 160
"""Of what goes to a file."""


class Runner:
    """Makes slices, each in a process of its own, until the hours are over."""

    def __init__(self, night: Night, slice_seeds: int | None, processes: int, console: Console) -> None:
        self._night, self._slice_seeds, self._console = night, slice_seeds, console
        self._pool = ThreadPoolExecutor(processes)
        self._processes = processes
        self._children: set[subprocess.Popen[bytes]] = set()

    def run(self, seconds_max: float) -> None:
        """Make slices until the night is ``seconds_max`` old; then wait for those under way."""
        before, started = self._night.state.seconds, time.monotonic()
        running: dict[Future[tuple[Outcome, float]], Slice] = {}
        while True:
            self._night.state.seconds = before + time.monotonic() - started
            while self._night.state.seconds < seconds_max and len(running) < self._processes:
                begun = self._night.next(seconds_max - self._night.state.seconds, self._slice_seeds)
                if begun is None:
                    break
                running[self._pool.submit(self._make, begun)] = begun
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._finish(running.pop(future), *future.result())

    def _finish(self, done: Slice, outcome: Outcome, seconds: float) -> None:
        self._night.note(done, outcome, seconds)
        self._console.print(
            f"{done.job}: seeds {done.first} to {done.end - 1}, {outcome.done:,} {JOBS[done.job].unit}, {seconds:.0f} s"
        )
        for failure in outcome.failures:
            tell(failure, done.job, self._console)

    def _make(self, begun: Slice) -> tuple[Outcome, float]:
        started = time.monotonic()
        command = [sys.executable, "-m", "tests.nightly", "slice", begun.job, str(begun.first), str(begun.end)]
        # A session of its own: a Ctrl-C is for the night, which ends its slices.
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
        self._children.add(child)
        try:
            answer, _ = child.communicate()
        finally:
            self._children.discard(child)
        if child.returncode == 0:
            outcome = msgspec.json.decode(answer, type=Outcome)
        else:
            again = f".venv/bin/python -m tests.nightly slice {begun.job} {begun.first} {begun.end}"
            outcome = Outcome(0, [Failure(begun.first, f"the slice ended with status {child.returncode}", again)])
        return outcome, time.monotonic() - started

    def stop(self) -> None:
        """End the slices under way."""
        for child in list(self._children):
            end_family(child.pid)
        self._pool.shutdown(cancel_futures=True)


def end_family(pid: int) -> None:
    """Kill a process and all below it. Nodes that tests start have sessions of their own."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def tell(failure: Failure, job: str, console: Console) -> None:
    """Print what failed and how to see it again."""
    console.print(f"[red]{job}, seed {failure.seed} FAILED[/red]", highlight=False)
    console.print(failure.message, markup=False, highlight=False)
    console.print(f"    {failure.repeat}", markup=False, highlight=False, soft_wrap=True)


def commit() -> str:
    """Return the id of the commit that is checked out; empty without git."""
    try:
        return subprocess.check_output(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def spend(arguments: argparse.Namespace) -> int:
    """Make the night, or continue with it."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    jobs = {name: JOBS[name] for name in arguments.jobs}
    if arguments.plan:
        console.print(plan_table(reached({}, {}, jobs, arguments.hours, arguments.processes)))
        return 0
    night = Night(arguments.state, jobs)
    if night.state.started:
        console.print(f"Continuing the night of {night.state.started}, {night.state.seconds / 60:.0f} minutes old.")
    night.state.started = night.state.started or time.strftime("%Y-%m-%d", time.gmtime())
    runner = Runner(night, arguments.slice_seeds, arguments.processes, console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        runner.run(arguments.hours * 3600)
    except KeyboardInterrupt:
        night.save()
        runner.stop()
        console.print("Stopped. The same command continues.")
        return 130
    hours = night.state.seconds / 3600
    found = reached(night.state.rows, night.state.next_seeds, jobs, max(hours, arguments.hours), arguments.processes)
    figures = {
        "commit": commit(),
        "hours": round(hours, 3),
        "processes": arguments.processes,
        "jobs": msgspec.to_builtins(found),
    }
    path = write_results("nightly", figures, arguments.results)
    console.print(table(found), f"Written to {path}")
    failures = [(name, failure) for name, row in night.state.rows.items() for failure in row.failures]
    for name, failure in failures:
        tell(failure, name, console)
    night.close()
    return 1 if failures else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="./run nightly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8.0, help="how long the whole night lasts (8)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="slices at a time (all cores)")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--slice-seeds", type=int, metavar="N", help="seeds of a slice, instead of each job's own")
    parser.add_argument("--plan", action="store_true", help="only show what a night of these hours would make")
    parser.add_argument("--state", type=Path, default=STATE, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    return spend(parser.parse_args())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["slice", name, first, end]:
            sys.stdout.buffer.write(msgspec.json.encode(run_slice(JOBS[name], int(first), int(end))))
        case ["repeat", name, seed]:
            print(f"{JOBS[name].run(int(seed)).done:,} {JOBS[name].unit}: every promise was kept")
        case _:
            sys.exit(main())
