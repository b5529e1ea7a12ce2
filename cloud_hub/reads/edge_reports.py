"""Statements of edges about themselves: their disks, the outage that they can bear, their functions and pairs.

It is for people. A report is kept in the memory of the process that the edge is linked to, and passed on to the others
(``cloud_hub.links.open_links``); no log, no claim and no right depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from weft.hub_api.answers import moment_of
from weft.hub_api.edges import CopyOfEdge, DiskOfEdge, FunctionOfEdge, PairOfEdge, TimeAlone
from weft.protocols.lane import NodeName, format_log_id
from weft.protocols.link import NodeReport, PairReport
from weft.protocols.ranges import Nanoseconds
from weft.protocols.shard.completeness import HeldBack, Reason

U32_MAX = (1 << 32) - 1


class EdgeReport(msgspec.Struct, frozen=True, array_like=True):
    """The last report of an edge."""

    reported: Nanoseconds
    """Time at which it came, by the hub's clock."""
    report: NodeReport
    has_functions: bool = True
    """False when the functions were left out since: they are not known."""

    pair: PairReport | None = None
    """None for an edge that has told nothing of a pair."""
    pair_reported: Nanoseconds = 0
    """Time at which that came."""

    def without_functions(self) -> EdgeReport:
        """Return the parts about disk and pair, which are small however much the edge has said."""
        report = msgspec.structs.replace(self.report, functions=[])
        return msgspec.structs.replace(self, report=report, has_functions=False)

    def within(self, bytes_max: int) -> EdgeReport:
        """Return it with so many encoded bytes of functions at most, and the number of the others."""
        functions, report, kept = self.report.functions, self.report, 0
        for each in functions:
            bytes_max -= len(msgspec.msgpack.encode(each))
            if bytes_max < 0:
                break
            kept += 1
        if kept == len(functions):
            return self
        more = min(report.functions_more + len(functions) - kept, U32_MAX)
        report = msgspec.structs.replace(report, functions=functions[:kept], functions_more=more)
        return msgspec.structs.replace(self, report=report)


def is_later(report: EdgeReport, known: EdgeReport | None) -> bool:
    """Return whether a report came after one that is known."""
    return known is None or (known.reported, known.pair_reported) < (report.reported, report.pair_reported)


def newest(own: Mapping[NodeName, EdgeReport], others: Mapping[NodeName, EdgeReport]) -> dict[NodeName, EdgeReport]:
    """Return the last report of each edge, from what a process and the others know."""
    return {**others, **{name: each for name, each in own.items() if is_later(each, others.get(name))}}


def disk_view(known: EdgeReport | None) -> DiskOfEdge | None:
    """Return the disk of an edge; None if it is not known."""
    if known is None:
        return None
    report = known.report
    return DiskOfEdge(
        reported=moment_of(known.reported),
        used_bytes=report.used_bytes,
        budget_bytes=report.budget_bytes,
        free_bytes=report.free_bytes,
        bytes_per_second=report.bytes_per_second,
        outage_seconds_left=report.outage_seconds,
    )


def copies_of(reports: Mapping[NodeName, EdgeReport]) -> dict[NodeName, list[CopyOfEdge]]:
    """Return what peers say of their copies, by the edge whose log it is."""
    found: dict[NodeName, list[CopyOfEdge]] = {}
    for name, known in reports.items():
        for copy in () if known.pair is None else known.pair.copies:
            view = CopyOfEdge(
                at=name.edge,
                reported=moment_of(known.pair_reported),
                log=format_log_id(copy.log_id),
                complete_to=None if copy.complete_to is None else moment_of(copy.complete_to),
                vouched=copy.is_vouched,
                records=copy.records,
            )
            found.setdefault(NodeName(copy.tenant, copy.edge), []).append(view)
    return found


def pair_view(known: EdgeReport | None, copies: list[CopyOfEdge]) -> PairOfEdge | UnsetType:
    """Return the pair of an edge.

    Args:
        copies: those of its log at its peers.
    """
    said = None if known is None else known.pair
    if said is None and not copies:
        return UNSET
    times = [] if said is None else said.alone
    return PairOfEdge(
        times_alone=[
            TimeAlone(since=moment_of(first), until=None if end is None else moment_of(end)) for first, end in times
        ],
        copies=copies,
    )


def outage_left(report: EdgeReport | None, now: int, *, is_linked: bool) -> float | None:
    """Return the seconds for which an edge can continue without a hub, at best infinite; None if they are not known.

    Args:
        now: nanoseconds since 1970 by the hub's clock.
        is_linked: False for an edge whose outage has begun: it continues since the edge said so.
    """
    if report is None:
        return None
    left = report.report.outage_seconds
    if left is None:
        return None if report.report.bytes_per_second is None else math.inf
    return left if is_linked else max(0.0, left - max(0, now - report.reported) / 1e9)


def with_error(each: HeldBack, stream: str, known: EdgeReport | None) -> HeldBack:
    """Return why a lane of a linked edge does not advance, with the error of the functions that make its stream.

    Args:
        known: the report of the edge; None for an edge that is not linked.
    """
    if known is None or each.reason not in {Reason.NOT_STARTED, Reason.SILENT}:
        return each
    error = next((of.last_error for of in known.report.functions if of.stream == stream and of.last_error), None)
    if error is None:
        return each
    why = f"the edge's functions of the stream make no rows: {error}"
    advice = "correct them; `weft edge status` on that edge has more. Records of their inputs wait there"
    return each._replace(reason=Reason.FUNCTIONS_FAIL, why=why, advice=advice)


def functions_view(report: NodeReport) -> list[FunctionOfEdge]:
    """Return the functions of an edge."""
    return [
        FunctionOfEdge(
            stream=each.stream,
            kinds=each.kinds,
            rows_in=each.rows_in,
            rows_out=each.rows_out,
            errors=each.errors,
            last_error=each.last_error or None,
        )
        for each in report.functions
    ]
