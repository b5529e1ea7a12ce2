"""Traces as a part of the node. Their code is loaded where the setting ``tracing`` asks for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.sources import Tracing
from weft.edge_node.counters import TraceCounters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.part import Part
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.replication.source import Party, ReleaseLedger

if TYPE_CHECKING:
    from weft.network.tracing import TraceExport

SERVICE = "weft-edge"
"""``service.name`` of an edge node's spans."""


class TracingPart(Part):
    """The traces of a node that may make none. It adds nothing to the path of a message then."""

    name = "traces"

    def __init__(  # noqa: PLR0917
        self,
        config: EdgeConfig,
        software: str,
        ingest: Ingest,
        ledger: ReleaseLedger,
        wall_clock: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """Trace messages of ``ingest`` if the configuration says so, and their acknowledgement by hubs.

        Args:
            software: name and version of the program.
            wall_clock: nanoseconds since 1970.
            clock: monotonic seconds.
        """
        self.counters = TraceCounters()
        self._export: TraceExport | None = None
        if config.tracing is not None:
            self._trace(config, config.tracing, software, ingest, ledger, wall_clock, clock)

    def _trace(  # noqa: PLR0917
        self,
        config: EdgeConfig,
        tracing: Tracing,
        software: str,
        ingest: Ingest,
        ledger: ReleaseLedger,
        wall_clock: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        from weft.edge_node.ingest.traces import Traces, TraceSettings
        from weft.network.tracing import ExportSettings, TraceExport

        log = ingest.log
        self._export = export = TraceExport(ExportSettings.of(tracing, SERVICE, software, config.node))
        attributes = {"weft.tenant": config.tenant, "weft.edge": config.node, "weft.log": format_log_id(log.log_id)}
        ingest.traces = traces = Traces(
            TraceSettings(tracing.sample_ratio, tracing.messages_per_second, attributes),
            self.counters,
            export.offer,
            log.on_durable,
            lambda stream: [each.name for each in ledger.parties(stream) if each.kind == "link"],
            log.streams,
            wall_clock,
            clock,
            random.Random(),
        )

        def released(party: Party, stream: int, ranges: RangeSet) -> None:
            if party.kind == "link":
                traces.released(party.name, stream, ranges)

        ledger.watch = released

    def start(self) -> None:
        """Begin to export."""
        if self._export is not None:
            self._export.start()

    async def close(self) -> None:
        """Send the spans that wait, for a moment."""
        if self._export is not None:
            await asyncio.to_thread(self._export.close)

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        return {"traces": {} if self._export is None else dict(self._export.figures())}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        from weft.network.tracing import NO_FIGURES

        figures = NO_FIGURES if self._export is None else self._export.figures()
        for name, value in figures.items():
            yield Sample(f"weft_edge_trace_{name}", value)
