"""Reports of pipelines of Spark: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.hub_api.answers import Count, Moment
from weft.hub_api.operation import OF_CHANGES, TENANT, Name, Operation, Parameter
from weft.hub_api.rights import Scope
from weft.protocols.lane import NAME_CHARACTERS_MAX


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a query, unchecked."""

    pipeline: str
    stream: str
    """The stream that it reads; `*` for several."""
    state: str
    """`running`, `ended` or `failed`; `silent` where a running one has not reported for some time."""
    error: str | None
    batch: Count | None
    """Number of the last micro-batch."""
    records: Count | None
    """Records of the last micro-batch."""
    seconds: float | None
    """Duration of the last micro-batch."""
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
    """A report that was accepted, or forgotten."""

    pipeline: str


_Words = Annotated[str, Meta(max_length=500)]


_Figure = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The state of a query, as it reports it."""

    stream: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """The stream that it reads; `*` for several."""
    state: Literal["running", "ended", "failed"]
    error: _Words | None = None
    """Error with which it ended."""
    batch: _Figure | None = None
    """Number of the last micro-batch."""
    records: _Figure | None = None
    """Records of the last micro-batch."""
    seconds: _Seconds | None = None
    """Duration of the last micro-batch."""
    rate: _Seconds | None = None
    """Records a second, since the report before."""
    lag: _Figure | None = None
    """Records of the log that are not read yet; null if the source does not report it."""
    complete_until: _Words | None = None
    """Moment up to which windows are complete, for a pipeline of windows."""
    idle_seconds: _Seconds | None = None
    """Time since the last micro-batch with records ended; null before the first."""
    every_seconds: _Seconds = 10.0
    """Longest time between two reports. One that is silent for longer is gone, or cut off."""


_PIPELINE_OF_PATH = Parameter("pipeline", Name, "Name of the pipeline.", "path", required=True)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "pipelines",
        "get",
        "/v1/pipelines",
        "Return the last report of each pipeline of Spark.",
        "By name, those whose stream the token may read. The hub does not check reports. The state is `silent` for "
        "a running pipeline that has not reported for 90 s, or for three of its intervals. Needs the right `read`.",
        PipelinesAnswer,
        parameters=(TENANT,),
        errors=frozenset({400, 401, 403, 421, 503}),
    ),
    Operation(
        "report_pipeline",
        "put",
        "/v1/pipelines/{pipeline}",
        "Report the state of a pipeline, again and again.",
        "A pipeline repeats its report. The hub writes it to the store at most every 30 s while state and error "
        "stay the same. It keeps 200 pipelines of a tenant; a further one is refused with 409. Needs the right "
        "`report` for the pipeline.",
        ReportedAnswer,
        (Scope.GRANTED,),
        parameters=(_PIPELINE_OF_PATH, TENANT),
        errors=OF_CHANGES,
        body=Report,
    ),
    Operation(
        "forget_pipeline",
        "delete",
        "/v1/pipelines/{pipeline}",
        "Forget a pipeline, until it reports again.",
        "Removes the stored report. A pipeline that runs appears again with its next report. Needs the right "
        "`report` for the pipeline.",
        ReportedAnswer,
        (Scope.GRANTED,),
        parameters=(_PIPELINE_OF_PATH, TENANT),
        errors=frozenset({400, 401, 403, 421, 503}),
    ),
)
"""Operations, in the order of the document."""
