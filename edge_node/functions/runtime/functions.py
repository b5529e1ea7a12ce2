"""All derived streams of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from weft.edge_node.functions.definitions import Definition
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.derived import Alerts, Derived, Streams, Surroundings, Version
from weft.edge_node.functions.runtime.holds import Holds
from weft.edge_node.functions.runtime.state_log import Remembered, StateReader
from weft.edge_node.streams import FUNCTIONS_STREAM, errors_stream
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

READS_MAX = 2
"""Pages that functions read from the disk at one time."""


class Functions:
    """The derived streams of a node. Event loop's thread only.

    Make it before links start: from then on the marks of derived streams are held at what the log knows of them. It
    reads the states from the log, which blocks.
    """

    def __init__(
        self,
        definitions: Iterable[Definition],
        log: SegmentLog,
        *,
        alerts: Alerts,
        released: Callable[[str, str, RangeSet], None],
        turn: Callable[[], Awaitable[None]],
        wall_clock: Callable[[], int],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Go on where the log ends.

        Args:
            alerts: publishes to local subscribers and to the streams of a topic.
            released: told (derived stream, input, numbers) of records that functions do not need any more.
            turn: returns when the node has time for more.
            wall_clock: ns since 1970.
            clock: seconds, never set.
            sleep: waits for some seconds, before something that failed is tried again.

        Raises:
            OSError, LogFailed: the states cannot be read.
            UnsupportedVersion: a later release wrote them.
        """
        self._log = log
        self._states = log.stream(FUNCTIONS_STREAM)
        self._around = Surroundings(
            log, log.page_reader(READS_MAX), Holds(log.hold_mark), alerts, released, self._read_states, turn,
            wall_clock, clock, sleep,
        )  # fmt: skip
        self._running: dict[str, Derived] = {}
        known = StateReader(log, self._states).streams
        for definition in definitions:
            self._running[definition.name] = self._made(definition, known.pop(definition.name, Remembered()))
        for left in known.values():  # of streams that have no functions any more
            log.release(self._states, RangeSet([(seq, seq + 1) for seq in left.seqs]))
        self._unlisten = log.listen_to_streams(self._appended)

    def start(self) -> None:
        """Begin to work."""
        for derived in self._running.values():
            derived.start()

    async def close(self) -> None:
        """Stop all functions. What is not durable of their work is done again at the next start."""
        self._unlisten()
        await asyncio.gather(*(derived.close() for derived in self._running.values()))

    def counters(self) -> dict[str, FunctionCounters]:
        """Return the figures of each derived stream."""
        return {name: derived.counters for name, derived in self._running.items()}

    # --- inside

    def _made(self, definition: Definition, remembered: Remembered) -> Derived:
        number = self._log.stream
        streams = Streams(
            own=number(definition.name),
            errors=number(errors_stream(definition.name)),
            states=self._states,
            inputs={name: number(name) for name in definition.inputs},
            others={name: number(name) for name in definition.others},
        )
        version = Version(definition.name, definition.digest)
        return Derived(version, streams, definition.make_chain, self._around, remembered)

    def _read_states(self, name: str) -> Remembered:
        return StateReader(self._log, self._states).streams.get(name, Remembered())

    def _appended(self, streams: frozenset[int]) -> None:
        for derived in self._running.values():
            derived.appended(streams)
