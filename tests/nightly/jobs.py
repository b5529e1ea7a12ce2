"""What a night is made of. A job is a row of seeds; a slice is a few of them, made by a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tests.support.slices import NIGHT, VARIABLE, Slice

NIGHT_HOURS, NIGHT_PROCESSES = 8, 2
"""The night that the time-table is for."""
REPORT_CHARACTERS = 2000
"""What is kept of a failure's output: its end."""


class Failure(msgspec.Struct, frozen=True):
    """A seed that broke a promise."""

    seed: int
    message: str
    repeat: str
    """The command that shows it again."""


class Made(NamedTuple):
    """What a seed came to."""

    done: int
    """In the job's unit."""
    left_out: tuple[str, ...] = ()
    """Why parts of it cannot run on this machine."""


class Outcome(NamedTuple):
    """What a slice came to."""

    done: int
    """In the job's unit."""
    failures: list[Failure]
    left_out: list[str] = []
    """Why parts of it cannot run on this machine, each reason once."""


@dataclass(frozen=True)
class Job:
    """A row of seeds, each of which either keeps every promise or fails the same way again."""

    unit: str
    minutes: int
    """Its part of the night, of the 960 minutes that two processes have in eight hours. What no row has, all share."""
    run: Callable[[int], Made]
    """Run one seed.

    Raises ``Exception`` where a promise was broken.
    """
    repeat: str
    """The command that repeats a seed, which stands for ``{seed}``."""
    tests: tuple[str, ...]
    """Files, or tests of files, with the mark ``search``, of which this is the whole."""
    slice_seeds: int
    slice_units: int
    """How much a slice is, in ``unit``."""
    slice_s: float
    """How long a process needs for a slice."""

    @property
    def rate(self) -> float:
        """Units in a second of one process."""
        return self.slice_units / self.slice_s

    def seconds(self, seeds: int) -> float:
        """Return how long so many seeds should take."""
        return self.slice_s * seeds / self.slice_seeds


def pytest_job(unit: str, *tests: str, minutes: int, slice_units: int, slice_s: float, only: str = "search") -> Job:
    """Make the job of searches that are tests: a seed is a pass over them, with the seeds of that night's slice.

    Args:
        only: what pytest's ``-m`` chooses of them.
    """
    chosen = ["-m", only, *tests]

    def run(seed: int) -> Made:
        return Made(slice_units, run_pytest(chosen, seed))

    repeat = f"{VARIABLE}={NIGHT}{{seed}} ./run test --all {' '.join(chosen)}"
    return Job(unit, minutes, run, repeat, tests, 1, slice_units, slice_s)


def run_pytest(arguments: Sequence[str], seed: int) -> tuple[str, ...]:
    """Run tests in their night's form. Returns why some of them cannot run here.

    Raises:
        AssertionError: some failed; the message ends with the commands that repeat them.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = os.environ | {VARIABLE: str(Slice(seed, is_night=True))}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(report(done.stderr + done.stdout))
    return skipped(done.stdout)


def report(output: str) -> str:
    """Return what says most in little: which tests failed and why, then the end.

    Libraries write at the interpreter's end, and many lines of theirs would be all that is kept.
    """
    lines = output.splitlines()
    found = [line for line in lines if line.startswith(("E   ", "FAILED ", "ERROR ", "WEFT_SLICE="))]
    kept = "\n".join(found)[-REPORT_CHARACTERS * 3 // 4 :]
    return kept + "\n...\n" + "\n".join(lines)[-REPORT_CHARACTERS // 4 :]


def skipped(output: str) -> tuple[str, ...]:
    """Return why some tests of a run were skipped.

    Raises:
        CannotRun: all were.
    """
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+: (.*)$", output, re.MULTILINE)
    if reasons and not re.search(r"^\d+ passed|, \d+ passed", output, re.MULTILINE):
        raise CannotRun("; ".join(dict.fromkeys(reasons)))
    return tuple(dict.fromkeys(reasons))


class CannotRun(Exception):
    """This machine lacks what a job needs, as the message says."""


def run_slice(job: Job, first: int, end: int) -> Outcome:
    """Run the seeds from ``first`` to before ``end``; a failing one does not end the slice."""
    done, failures, left_out = 0, list[Failure](), dict[str, None]()
    for seed in range(first, end):
        try:
            made = job.run(seed)
        except CannotRun as reason:
            left_out[str(reason)] = None
            break
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[-REPORT_CHARACTERS:]
            failures.append(Failure(seed, message, job.repeat.format(seed=seed)))
        else:
            done += made.done
            left_out |= dict.fromkeys(made.left_out)
    return Outcome(done, failures, list(left_out))


def planned_seconds(jobs: Mapping[str, Job], name: str, hours: float, processes: int) -> float:
    """Return the process time that a job has in a night of some jobs."""
    part = jobs[name].minutes / sum(job.minutes for job in jobs.values())
    return part * hours * 3600 * processes
