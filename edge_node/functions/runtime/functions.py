"""All derived streams of a node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

from weft.edge_node.functions.chain import Alerts
from weft.edge_node.functions.definitions import Definition
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.derived import Derived
from weft.edge_node.functions.runtime.mark_holds import MarkHolds
from weft.edge_node.functions.runtime.parts import Environment, StreamNumbers, Version
from weft.edge_node.functions.runtime.replays import REPLAYS_MAX, Replay, ReplayProgress, ReplayRefused
from weft.edge_node.functions.runtime.state_log import Remembered, StateReader, tombstone
from weft.edge_node.streams import FUNCTIONS_STREAM, errors_stream
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFull, SegmentLog

READS_MAX = 2
"""Maximum number of concurrent reads of pages from the disk."""


class Functions:
    """The derived streams of a node. Event loop's thread only.

    Make it before links start: from then on the marks of derived streams are held at their state in the log. It reads
    the states from the log, which blocks.
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
        """Resume at the end of the log's steps.

        Args:
            alerts: publishes to local subscribers and to the streams of a topic.
            released: called with (derived stream, input, numbers) for records that functions no longer need.
            turn: returns when the node has time for more.
            wall_clock: ns since 1970.
            clock: monotonic seconds.
            sleep: waits for some seconds, before a retry.

        Raises:
            OSError, LogFailed: the states cannot be read.
            UnsupportedVersion: a later release wrote them.
        """
        self._log = log
        self._tell_released = released
        self._states = log.stream(FUNCTIONS_STREAM)
        self._environment = Environment(
            log, log.page_reader(READS_MAX), MarkHolds(log.hold_mark), alerts, self._released, self._read_states, turn,
            wall_clock, clock, sleep,
        )  # fmt: skip
        self._running: dict[str, Derived] = {}
        self._changes: asyncio.Task[None] | None = None
        self._wanted: dict[str, Definition] = {}
        reader = StateReader(log, self._states)
        self._replays: dict[str, Replay] = {}
        self._one_replay_at_a_time = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._written: set[str] = set()
        """Names of the streams that functions write. Derived streams share this set, which changes."""
        self._want({definition.name: definition for definition in definitions})
        for name, definition in self._wanted.items():
            self._running[name] = self._made(definition, reader.of(name))
        left = reader.streams
        self._marked = {name: marked for name, each in left.items() if (marked := each.positions.replayed)}
        for name, each in left.items():
            self._forget(each.old)
            if name not in self._marked:
                self._bury(name, each)
        self._unlisten = log.listen_to_streams(self._appended)

    def start(self) -> None:
        """Begin to work."""
        for derived in self._running.values():
            derived.start()

    async def close(self) -> None:
        """Stop all functions. The next start repeats work that is not durable."""
        self._unlisten()
        if self._changes is not None:
            self._changes.cancel()
            await asyncio.gather(self._changes, return_exceptions=True)
        replays = (replay.derived for replay in self._replays.values())
        await asyncio.gather(*(derived.close() for derived in (*self._running.values(), *replays)))

    def counters(self) -> dict[str, FunctionCounters]:
        """Return the figures of each derived stream."""
        return {name: derived.counters for name, derived in self._running.items()}

    def change(self, definitions: Iterable[Definition]) -> None:
        """Replace the derived streams. Remaining ones continue, and switch to changed functions after their present
        step; they return to the former functions if the new ones fail on their first rows.

        Raises:
            ValueError: functions cannot work with their settings. Nothing has changed.
        """
        wanted = {definition.name: definition for definition in definitions}
        for name, definition in wanted.items():
            if not definition.works_like(self._wanted.get(name)):
                definition.make_chain()  # raises now if it cannot be created
        for name, definition in wanted.items():
            # From now on: links may send marks before the functions run.
            self._environment.mark_holds.hold_also(name, self._streams(definition).outputs)
        self._want(wanted)
        if self._changes is None or self._changes.done():
            self._changes = asyncio.get_running_loop().create_task(self._change())

    # --- replays

    async def replay(self, replayed: str, into: str) -> ReplayProgress:
        """Compute a derived stream again, from all records of its inputs in the log, into another stream.

        The same records get the same numbers each time; a partial replay, or one with new records since, is continued.
        Rows for other streams and alerts are left out.

        Raises:
            ReplayRefused: the replay is not possible; the message has the reason.
        """
        # The state of an earlier replay is among those of all streams, which may take a second to read.
        async with self._one_replay_at_a_time:
            remembered = await asyncio.to_thread(self._read_states, into)
            return self._replay(replayed, into, remembered)

    def _replay(self, replayed: str, into: str, remembered: Remembered) -> ReplayProgress:
        running = self._replays.get(into)
        if running is not None and running.progress().left:
            return running.progress()
        definition = self._wanted.get(replayed)
        if definition is None:
            listed = ", ".join(self._wanted) or "none"
            raise ReplayRefused(f"{replayed} is not a derived stream of this node. Derived streams: {listed}")
        if sum(each.progress().left > 0 for each in self._replays.values()) >= REPLAYS_MAX:
            raise ReplayRefused(f"{REPLAYS_MAX} replays run already. Run this again when one of them is done")
        marked = f"{replayed}@{definition.digest.hex()[:8]}"
        before = remembered.positions.replayed
        if before != marked and (before or self._log.next_seq(self._log.stream(into))):
            what = f"has a replay of {before}" if before else "has records of its own"
            raise ReplayRefused(f"{into} {what}, and this is one of {marked}. Choose another name")
        derived = self._made(definition._replace(name=into), remembered, marked)
        ends = {name: self._log.durable_end(self._log.stream(name)) for name in definition.inputs}
        self._replays[into] = Replay(derived, ends)
        derived.start()
        return self._replays[into].progress()

    def replay_progress(self, into: str) -> ReplayProgress:
        """Return the progress of a replay that was started in this run of the node.

        Raises:
            ReplayRefused: there is no such replay.
        """
        if into not in self._replays:
            raise ReplayRefused(f"nothing is replayed into {into}")
        return self._replays[into].progress()

    def replayed(self) -> dict[str, str]:
        """Return the streams that have replays -> the derived streams that they are replays of."""
        return {name: marked.partition("@")[0] for name, marked in self._marked.items()}

    def _released(self, function: str, name: str, ranges: RangeSet) -> None:
        replay = self._replays.get(function)
        if replay is None:
            self._tell_released(function, name, ranges)
            return
        for _, end in ranges:
            replay.has_read(name, end)
        if not replay.progress().left:
            self._closing = asyncio.get_running_loop().create_task(replay.derived.close())
            self._environment.mark_holds.lift(function)

    # --- inside

    def _want(self, definitions: dict[str, Definition]) -> None:
        self._wanted = definitions
        self._written.clear()
        for each in definitions.values():
            self._written.update((each.name, errors_stream(each.name), *each.others))

    async def _change(self) -> None:
        """Start and stop streams until the wanted ones run; the wish may change meanwhile."""
        done: dict[str, Definition] | None = None
        while done is not self._wanted:
            done = self._wanted
            for name, derived in list(self._running.items()):
                definition = done.get(name)
                if definition is None or not derived.has_streams(definition.inputs, definition.others):
                    await derived.close()
                    del self._running[name]
                    if definition is None:
                        self._environment.mark_holds.lift(name)
                else:
                    derived.change(version_of(definition))
            for name in done.keys() - self._running.keys():
                # Earlier writes count, durable or not.
                await self._log.durable()
                remembered = await asyncio.to_thread(self._read_states, name)
                self._environment.mark_holds.keep_only(name, self._streams(done[name]).outputs)
                self._running[name] = self._made(done[name], remembered)
                self._running[name].start()

    def _forget(self, seqs: list[int]) -> None:
        """Release records of states. A restart loses the log's list of them."""
        if seqs:
            self._log.release(self._states, RangeSet([(seq, seq + 1) for seq in seqs]))

    def _bury(self, name: str, left: Remembered) -> None:
        """Keep only the positions of a stream without functions."""
        if len(left.seqs) < 2 and not left.states:
            return
        key, value = tombstone(name, left)
        with contextlib.suppress(LogFull):  # another start has room
            self._log.append(self._states, self._environment.wall_clock(), [key], [value])
            self._log.on_durable(lambda error: self._forget(left.seqs) if error is None else None)

    def _made(self, definition: Definition, remembered: Remembered, replayed: str = "") -> Derived:
        version = version_of(definition)._replace(replayed=replayed)
        self._forget(remembered.old)
        return Derived(version, self._streams(definition), self._environment, remembered)

    def _streams(self, definition: Definition) -> StreamNumbers:
        number = self._log.stream
        return StreamNumbers(
            own=number(definition.name),
            errors=number(errors_stream(definition.name)),
            states=self._states,
            inputs={name: number(name) for name in definition.inputs},
            others={name: number(name) for name in definition.others},
            written=self._written,
        )

    def _read_states(self, name: str) -> Remembered:
        return StateReader(self._log, self._states).of(name)

    def _appended(self, streams: frozenset[int]) -> None:
        for derived in self._running.values():
            derived.appended(streams)
        for replay in self._replays.values():
            replay.derived.appended(streams)


def version_of(definition: Definition) -> Version:
    """Return the version of the functions of a definition."""
    return Version(definition.name, definition.digest, definition.make_chain, whole=definition.whole)
