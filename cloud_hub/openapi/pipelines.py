"""Types of the answers about pipelines of Spark."""

from __future__ import annotations

import msgspec

from weft.cloud_hub.openapi.common import Count, Moment


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a query. Nothing of it was checked."""

    pipeline: str
    stream: str
    """The stream that it reads; `*` for several."""
    state: str
    """`running`, `ended` or `failed`; `silent` where a running one has not reported for some time."""
    error: str | None
    batch: Count | None
    """Number of the last micro-batch."""
    records: Count | None
    """Records of it."""
    seconds: float | None
    """Time that it took."""
    rate: float | None
    """Records a second, between the last two reports."""
    lag: Count | None
    """Records of the log that it has not read; null: unknown."""
    complete_until: str | None
    """Moment up to which its windows are complete."""
    idle_seconds: float | None
    """Time between the end of the last micro-batch with records and the report."""
    every_seconds: float
    seen: Moment
    """Moment of the report."""
    seen_seconds_ago: float


class PipelinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines of a tenant that have reported, by name, at most 200."""

    pipelines: list[PipelineReport]


class ReportedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A report that was taken, or forgotten."""

    pipeline: str
