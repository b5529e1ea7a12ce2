"""What a night has done so far, in a file that is whole at any moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.table import Table

from tests.nightly.jobs import Failure, Job, Outcome, planned_seconds


class Row(msgspec.Struct):
    """One job of a night."""

    seeds: int = 0
    done: int = 0
    seconds: float = 0.0
    """Time of processes."""
    failures: list[Failure] = []
    left_out: list[str] = []
    """Why parts of it cannot run on this machine."""

    @property
    def cannot_run(self) -> bool:
        """Whether a slice was begun, and this machine lacks what it needs."""
        return bool(self.left_out) and not self.done and not self.failures


class Slice(msgspec.Struct, frozen=True):
    """Seeds of a job, from ``first`` to before ``end``."""

    job: str
    first: int
    end: int


class State(msgspec.Struct):
    """The night under way, and where the next one continues."""

    next_seeds: dict[str, int] = {}
    open: list[Slice] = []
    """Begun and not done. After a kill they are made again, so that no seed is left out."""
    rows: dict[str, Row] = {}
    seconds: float = 0.0
    """How long the night has lasted, pauses left out."""
    started: str = ""
    """The night's date; empty before its first slice."""


class Night:
    """The state and its file. After each method the file says what the state says."""

    def __init__(self, path: Path, jobs: Mapping[str, Job]) -> None:
        self._path = path
        self.state = msgspec.json.decode(path.read_bytes(), type=State) if path.exists() else State()
        self._left = [each for each in self.state.open if each.job in jobs]
        self._jobs = jobs

    def next(self, seconds_left: float, seeds: int | None = None) -> Slice | None:
        """Begin a slice: one that a kill cut short, or new seeds of the job that lags furthest behind its minutes.

        Args:
            seconds_left: of the night. A slice that needs longer is not begun.
            seeds: how many new ones, instead of as many as the job says.

        Returns:
            None where nothing is left that fits and that this machine can run.
        """
        if self._left:
            return self._left.pop()
        running = [each.job for each in self.state.open]
        fitting = [
            name
            for name, job in self._jobs.items()
            if job.seconds(seeds or job.slice_seeds) <= seconds_left and not self.row(name).cannot_run
        ]
        if not fitting:
            return None
        job = min(fitting, key=lambda name: (running.count(name), self.row(name).seconds / self._jobs[name].minutes))
        first = self.state.next_seeds.get(job, 1)
        begun = Slice(job, first, first + (seeds or self._jobs[job].slice_seeds))
        self.state.next_seeds[job] = begun.end
        self.state.open.append(begun)
        self.save()
        return begun

    def note(self, done: Slice, outcome: Outcome, seconds: float) -> None:
        """Count what a slice came to."""
        row = self.row(done.job)
        row.seeds += done.end - done.first
        row.done += outcome.done
        row.seconds += seconds
        row.failures += outcome.failures
        row.left_out = list(dict.fromkeys([*row.left_out, *outcome.left_out]))
        self.state.open.remove(done)
        self.save()

    def row(self, job: str) -> Row:
        """The figures of a job."""
        return self.state.rows.setdefault(job, Row())

    def close(self) -> None:
        """End the night: what follows continues with later seeds and counts from zero."""
        self.state = State(next_seeds=self.state.next_seeds, open=self.state.open)
        self.save()

    def save(self) -> None:
        """Replace the file; a kill leaves the old one or the new one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.state), indent=1))
        os.replace(temporary, self._path)


# --- What a night reached of its time-table


NEARLY = 0.95
"""Part of its plan, or of its time, that counts as all of it."""


class Reached(msgspec.Struct):
    """A row of the time-table at the end of a night."""

    unit: str
    plan: int
    """In ``unit``: what the job's minutes come to at the rate of the time-table."""
    reached: int
    rate: float
    """Units in a second of one process."""
    minutes_planned: float
    minutes: float
    """Time of processes."""
    seeds: int
    next_seed: int
    not_reached: str
    """Why there is less than the plan; empty where there is not."""
    left_out: list[str]
    """Why parts of it cannot run on this machine."""
    failures: list[Failure]


def reached(
    rows: Mapping[str, Row], next_seeds: Mapping[str, int], jobs: Mapping[str, Job], hours: float, processes: int
) -> dict[str, Reached]:
    """Return each job's row."""
    found = {}
    for name, job in jobs.items():
        row, seconds = rows.get(name, Row()), planned_seconds(jobs, name, hours, processes)
        found[name] = Reached(
            job.unit,
            round(job.rate * seconds),
            row.done,
            _rounded(row.done / row.seconds if row.seconds else 0.0),
            round(seconds / 60, 1),
            round(row.seconds / 60, 1),
            row.seeds,
            next_seeds.get(name, 1),
            _why(job, row, seconds),
            row.left_out,
            row.failures,
        )
    return found


def _why(job: Job, row: Row, seconds: float) -> str:
    if row.cannot_run:
        return f"cannot run here: {'; '.join(row.left_out)}"
    if row.done >= NEARLY * job.rate * seconds:
        return ""
    if row.seconds < NEARLY * seconds:
        needed = f"; a slice takes {job.slice_s / 60:.1f}" if not row.seeds else ""
        return f"no time: {row.seconds / 60:.1f} of {seconds / 60:.1f} minutes{needed}"
    if row.failures:
        return "seeds failed"
    return f"slower than planned: {_rounded(row.done / row.seconds)} instead of {_rounded(job.rate)} a second"


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def plan_table(found: Mapping[str, Reached]) -> Table:
    """Return what a night would make."""
    made = Table("job", "plan", "minutes")
    for name, row in found.items():
        made.add_row(name, f"{row.plan:,} {row.unit}", f"{row.minutes_planned}")
    return made


def table(found: Mapping[str, Reached]) -> Table:
    """Return the night at a glance."""
    made = Table("job", "reached of plan", "a second", "minutes", "failed", "not reached")
    for name, row in found.items():
        failed = f"[red]{len(row.failures)}[/red]" if row.failures else "0"
        part = f" ({row.reached / row.plan:.0%})" if row.plan else ""
        missing = "; ".join(filter(None, [row.not_reached, *([] if "cannot" in row.not_reached else row.left_out)]))
        made.add_row(
            name,
            f"{row.reached:,} of {row.plan:,} {row.unit}{part}",
            f"{row.rate:g}",
            f"{row.minutes} of {row.minutes_planned}",
            failed,
            missing,
        )
    return made
