"""Functions as parts of the node. Their code is loaded once a configuration has some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import is_derived
from weft.edge_node.derived.counters import FunctionFacts, function_facts, function_samples
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.part import Part, Undo, unchanged
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.derived.counters import FunctionCounters
    from weft.edge_node.derived.runtime import FunctionsBeforeLog, NodeFunctions
    from weft.edge_node.derived.stream import ReplayProgress


class BeforeLogPart(Part):
    """Functions on messages that are not in the log yet. Their code is loaded once a node has some."""

    name = "functions before the log"

    def __init__(self, log: SegmentLog, routing: Routing) -> None:
        """Start without functions."""
        self._log = log
        self._routing = routing
        self._functions: dict[int, FunctionsBeforeLog] = {}

    def put(self, config: EdgeConfig) -> None:
        """Run the functions of a configuration from now on.

        Raises:
            ValueError, OSError: a function cannot work; nothing has changed.
        """
        if not self._functions and all(stream.raw != "discard" for stream in config.streams.values()):
            return
        from weft.edge_node.derived.runtime import functions_before_log

        self._functions = functions_before_log(config, self._log, self._functions)
        self._routing.work_before_log(self._functions)

    def figures(self, behind: Mapping[str, FunctionCounters]) -> dict[str, FunctionCounters]:
        """Return the figures of each stream.

        Args:
            behind: figures of the functions that read records of earlier settings, and keep the streams' marks.
        """
        found = {}
        for each in self._functions.values():
            found[each.name] = each.counters
            if (other := behind.get(each.name)) is not None:
                found[each.name] = msgspec.structs.replace(each.counters, until=other.until, lag=other.lag)
        return found

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the functions of ``now``.

        Raises:
            ValueError, OSError: as ``put``.
        """
        self.put(now)
        return lambda: self.put(before)


class FunctionsPart(Part):
    """Derived streams. The code of functions is loaded once a node has some."""

    name = "functions"

    def __init__(
        self, make: Callable[[EdgeConfig], NodeFunctions], before_log: BeforeLogPart, wall_clock: Callable[[], int]
    ) -> None:
        """Start with no functions.

        Args:
            make: makes the functions of a configuration.
            wall_clock: ns since 1970.
        """
        self._make = make
        self._before_log = before_log
        self._wall_clock = wall_clock
        self._functions: NodeFunctions | None = None
        self._is_started = False

    def make(self, config: EdgeConfig) -> None:
        """Make the functions of a configuration. Blocks on the disk.

        Raises:
            OSError, LogFailed, UnsupportedVersion: as ``NodeFunctions``.
        """
        self._functions = self._make(config)

    def start(self) -> None:
        """Start the functions."""
        self._is_started = True
        if self._functions is not None:
            self._functions.start()

    async def close(self) -> None:
        """Stop the functions."""
        if self._functions is not None:
            await self._functions.close()

    def figures(self) -> dict[str, FunctionCounters]:
        """Return the figures of each derived stream, by its name."""
        behind = self._functions.counters() if self._functions is not None else {}
        return {**behind, **self._before_log.figures(behind)}

    def in_trouble(self) -> frozenset[str]:
        """Return the derived streams whose functions have an error."""
        return frozenset(name for name, each in self.figures().items() if each.trouble or each.refused)

    def _function_facts(self) -> dict[str, FunctionFacts]:
        now = self._wall_clock()
        return {name: function_facts(counters, now) for name, counters in self.figures().items()}

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        return {"functions": self._function_facts()}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for name, facts in self._function_facts().items():
            yield from function_samples(name, facts)

    async def replay(self, stream: str, into: str) -> ReplayProgress:
        """Begin to compute a derived stream again, or report the progress.

        Raises:
            ReplayRefused: that is not possible; the message has the reason.
        """
        from weft.edge_node.derived.stream import ReplayRefused

        if self._functions is None:
            raise ReplayRefused("the node has no derived streams")
        return await self._functions.replay(stream, into)

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the functions of ``now``.

        Raises:
            ValueError: as ``NodeFunctions.adopt``.
        """
        if self._functions is None:
            if not any(map(is_derived, now.streams.values())):
                return unchanged
            self.make(before)
            self.start()
        functions = self._functions
        assert functions is not None
        functions.adopt(now)
        return lambda: functions.adopt(before)
