"""What a night reached of its time-table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.table import Table

from tests.nightly.jobs import Failure, Job, planned_seconds
from tests.nightly.state import Row

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
