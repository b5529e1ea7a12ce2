"""The functions of a node, joined to its log, its links and its local subscribers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import carried_streams, streams_of
from weft.edge_node.derived.counters import FunctionCounters
from weft.edge_node.derived.definitions import Definition, definitions, definitions_before_log
from weft.edge_node.derived.steps import (
    DerivedContext,
    MarkHolds,
    Remembered,
    StateReader,
    StreamNumbers,
    Version,
    runs_of,
    tombstone,
)
from weft.edge_node.derived.stream import REPLAYS_MAX, Derived, Replay, ReplayProgress, ReplayRefused
from weft.edge_node.ingest.record import NodeRecord, StreamRecords
from weft.edge_node.part import Part
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.sessions.retained import RetainedMessages
from weft.edge_node.streams import FUNCTIONS_STREAM, OWN_PREFIX, RAW_PREFIX, UNROUTED_STREAM, errors_stream
from weft.edge_node.subscriptions.message import Message
from weft.functions.chain import Alert, Alerts, Chain, Outputs
from weft.functions.contract import NotReady, Row
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.lane import NAME_RULE, OriginKind, valid_name
from weft.protocols.mqtt.packets import Publish
from weft.protocols.ranges import RangeSet
from weft.replication.source import Party, ReleaseLedger
from weft.storage.segment_log import LogError, LogFull, SegmentLog, StreamPolicy

# All derived streams of a node.

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
        self._report_released = released
        self._states = log.stream(FUNCTIONS_STREAM)
        self._context = DerivedContext(
            log,
            log.page_reader(READS_MAX),
            MarkHolds(log.hold_mark),
            alerts,
            self._released,
            self._read_states,
            turn,
            wall_clock,
            clock,
            sleep,
        )
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
            self._context.mark_holds.hold_also(name, self._streams(definition).outputs)
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
            self._report_released(function, name, ranges)
            return
        for _, end in ranges:
            replay.has_read(name, end)
        if not replay.progress().left:
            self._closing = asyncio.get_running_loop().create_task(replay.derived.close())
            self._context.mark_holds.lift(function)

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
                        self._context.mark_holds.lift(name)
                else:
                    derived.versions.want(version_of(definition))
            for name in done.keys() - self._running.keys():
                # Earlier writes count, durable or not.
                await self._log.durable()
                remembered = await asyncio.to_thread(self._read_states, name)
                self._context.mark_holds.keep_only(name, self._streams(done[name]).outputs)
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
            self._log.append(self._states, self._context.wall_clock(), [key], [value])
            self._log.on_durable(lambda error: self._forget(left.seqs) if error is None else None)

    def _made(self, definition: Definition, remembered: Remembered, replayed: str = "") -> Derived:
        version = version_of(definition)._replace(replayed=replayed)
        self._forget(remembered.old)
        return Derived(version, self._streams(definition), self._context, remembered)

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


_QOS_FLAGS = (Flag.PUBLISHED_QOS0, Flag(0), Flag.PUBLISHED_QOS2)


Policies = Callable[[EdgeConfig], dict[str, StreamPolicy]]


class NodeFunctions:
    """The functions of a node. Event loop's thread only. Make it before links start."""

    def __init__(
        self,
        config: EdgeConfig,
        context: ProtocolContext,
        alerts: NodeAlerts,
        ledger: ReleaseLedger,
        policies: Policies,
    ) -> None:
        """Create the functions of a configuration. Blocks while it reads their states.

        Args:
            ledger: ledger of the records that may be deleted; functions become parties to it.
            policies: returns the retention of each stream of a configuration.

        Raises:
            OSError, LogFailed, UnsupportedVersion: as ``Functions``.
        """
        self._log = context.log
        self._ledger = ledger
        self._policies = policies
        self._config = config
        found = list(definitions(config))
        self._parties: set[tuple[str, str]] = set()
        """(derived stream, input) of records that wait for a function."""
        self._join(config, found)
        self._functions = Functions(
            found,
            context.log,
            alerts=alerts,
            released=self._released,
            turn=partial(context.round_robin.turn, None),
            wall_clock=context.wall_clock,
            clock=context.clock,
        )
        self._keep_replays(self._functions.replayed())
        self.start, self.close, self.counters = self._functions.start, self._functions.close, self._functions.counters

    def adopt(self, config: EdgeConfig) -> None:
        """Run the functions of another configuration from now on.

        Raises:
            ValueError: as ``Functions.change``; nothing has changed.
        """
        found = list(definitions(config))
        self._functions.change(found)
        self._join(config, found)
        self._config = config

    async def replay(self, stream: str, into: str) -> ReplayProgress:
        """Compute a derived stream again into another one, which is retained as long as the first and stays on the
        node; without ``stream``, report the progress.

        Raises:
            ReplayRefused: the replay is not possible; the message has the reason.
        """
        if not stream:
            return self._functions.replay_progress(into)
        if not valid_name(into):
            raise ReplayRefused(f"{into!r} cannot name a stream: {NAME_RULE}")
        if into.startswith(OWN_PREFIX):
            raise ReplayRefused(
                f"names that begin with {OWN_PREFIX} are for streams of the node itself. Choose another"
            )
        if into == UNROUTED_STREAM or into in streams_of(self._config):
            raise ReplayRefused(f"{into} is a stream of the node already. Choose another name for the replay")
        progress = await self._functions.replay(stream, into)
        self._keep_replays({into: stream})
        return progress

    def _keep_replays(self, replays: Mapping[str, str]) -> None:
        policies = self._policies(self._config)
        for into, replayed in replays.items():
            policy = policies.get(replayed, StreamPolicy("drop_oldest"))
            self._log.set_policy(self._log.stream(into), dataclasses.replace(policy, replicated=False))

    def _join(self, config: EdgeConfig, found: list[Definition]) -> None:
        """Keep records that links carry, or that only functions read, until the functions have them. Retention alone
        decides about records without such readers."""
        carried = {stream for link in config.links.values() for stream in carried_streams(link, config)}
        parties = {
            (definition.name, name)
            for definition in found
            for name in definition.inputs
            if name.startswith(RAW_PREFIX) or name in carried
        }
        for function, name in parties - self._parties:
            self._ledger.join(Party("function", function), self._log.stream(name))
        for function, name in self._parties - parties:
            self._ledger.leave(Party("function", function), self._log.stream(name))
        self._parties = parties

    def _released(self, function: str, stream: str, ranges: RangeSet) -> None:
        if (function, stream) in self._parties:
            self._ledger.released(Party("function", function), self._log.stream(stream), ranges)


class NodeAlerts:
    """Publisher of the functions' alerts, within the commit of their step."""

    def __init__(self, context: ProtocolContext, retained: RetainedMessages) -> None:
        """Prepare to publish in the way of a client of the node."""
        self._ingest = context.ingest
        self._retained = retained
        self._deliver = context.fan_out.message
        self._wall_clock = context.wall_clock

    def ready(self) -> None:
        """Store the messages that clients have published before.

        Raises:
            LogFull, LogFailed: that is not possible.
        """
        self._ingest.batch.store()

    def __call__(self, alert: Alert) -> None:
        """Store and deliver a message, unless its time is over."""
        now = self._wall_clock()
        if alert.until and alert.until < now:
            return
        if alert.retain:
            self._retained.retain(Publish(alert.topic, alert.payload, alert.qos, 0, retain=True), now)
        if alert.topic.startswith(b"$"):
            # A topic of the node's own, as `$SYS`: only for clients that subscribe to it by name, and in no stream.
            self._deliver(Message(alert.topic, alert.payload, alert.qos, alert.retain))
            return
        flags = _QOS_FLAGS[alert.qos] | (Flag.RETAINED if alert.retain else Flag(0))
        self._ingest.publish(NodeRecord(alert.topic, alert.payload, int(flags)))


# Stateless functions, on messages that are not in the log yet (``raw: discard``).
#
# Their results are appended in place of the message, and the message is acknowledged with them. A message without
# results is acknowledged and never written.

logger = logging.getLogger(__name__)


def functions_before_log(
    config: EdgeConfig, log: SegmentLog, known: Mapping[int, FunctionsBeforeLog]
) -> dict[int, FunctionsBeforeLog]:
    """Return the functions of streams with ``raw: discard``, by the number of the stream that they replace.

    Args:
        known: functions of earlier settings, whose figures continue.

    Raises:
        ValueError: a function cannot work with its settings.
        OSError: a file that a function needs cannot be used. Messages cannot wait for it, as none of them is stored.
    """
    found = {}
    for definition in definitions_before_log(config):
        number = log.stream(definition.inputs[0])
        try:
            made = FunctionsBeforeLog(definition, log)
        except NotReady as error:
            raise OSError(f"streams.{definition.name}: {error}") from None
        if number in known:
            made.counters = msgspec.structs.replace(known[number].counters, version=made.counters.version)
        found[number] = made
    return found


class FunctionsBeforeLog:
    """The functions of one stream. Event loop's thread only."""

    def __init__(self, definition: Definition, log: SegmentLog) -> None:
        """Create the functions, and read the files that they need, once.

        Raises:
            ValueError: a function cannot work with its settings.
            NotReady: a file cannot be used.
        """
        self.name = definition.name
        self._log = log
        self._chain: Chain = definition.make_chain()
        self._digest = definition.digest
        self._own = log.stream(definition.name)
        self._errors = log.stream(errors_stream(definition.name))
        self._others = {name: log.stream(name) for name in definition.others}
        self._chain.prepare_at_once()
        version = self._chain.version()
        self._version = self._digest.hex()[:8] + (f"-{version}" if version else "")
        self.counters = FunctionCounters(version=self._version)

    def runs(
        self, keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int
    ) -> list[StreamRecords]:
        """Return what is to be stored of some messages, by stream. What fails goes to the stream of errors."""
        outputs = Outputs()
        try:
            self._chain.process_at_once(_rows(keys, payloads, headers, now), outputs)
        except Exception as error:
            # A fault of a function. The messages go to the stream of errors, since nothing else may have a copy of
            # them.
            logger.exception("the functions of %s failed", self.name)
            self.counters.failures += 1
            outputs = Outputs()
            way = self._chain.entry(outputs)
            for row in _rows(keys, payloads, headers, now):
                way.reject(row, f"the functions failed: {type(error).__name__}")
        origin = self._log.origin(OriginKind.FUNCTION, self.name, self._version, self._digest)
        # The rows' own times are not used: all rows have the time of the turn, as messages have.
        return [
            StreamRecords(run.stream, run.keys, run.payloads, run.headers, origin)
            for run in runs_of(outputs, self._own, self._errors, self._others, after=0, last={})
        ]

    def stored(self, payloads: list[bytes], runs: Sequence[StreamRecords]) -> None:
        """Count the appended rows."""
        counters = self.counters
        counters.rows_in += len(payloads)
        counters.bytes_in += sum(map(len, payloads))
        for run in runs:
            if run.stream == self._own:
                counters.rows_out += len(run.keys)
                counters.bytes_out += sum(map(len, run.payloads))
            elif run.stream == self._errors:
                counters.rows_rejected += len(run.keys)
            else:
                counters.rows_routed += len(run.keys)


def _rows(keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int) -> list[Row]:
    rows = [Row(now, key, payload, {}, original=payload) for key, payload in zip(keys, payloads, strict=True)]
    for index, pairs in headers.items():
        rows[index].headers = pairs
    return rows


# The node as a host application: ``STATE`` informs edge nodes that their data reach a log (Sparkplug 3.0, section 5).
#
# An edge node whose primary host this is sends its data while the host is online, and holds them back otherwise. Here
# the broker and the host are one process: a client that reaches the broker reaches the log. No will is needed, since
# the host goes offline only with the broker: after a crash, the retained `online` message is available as soon as
# clients can connect, and their publishes are stored.


class HostState(Part):
    """The retained message ``spBv1.0/STATE/HOST_ID``. Event loop's thread only."""

    name = "Sparkplug host"

    def __init__(self, host_id: str, publish: Alerts, wall_clock: Callable[[], int]) -> None:
        """Publish nothing yet.

        Args:
            wall_clock: ns since 1970.
        """
        self._topic = b"spBv1.0/STATE/" + host_id.encode()
        self._publish = publish
        self._wall_clock = wall_clock

    def start(self) -> None:
        """Publish that the host is online."""
        self._publish_state(online=True)

    async def close(self) -> None:
        """Publish that the host goes offline."""
        self._publish_state(online=False)

    def _publish_state(self, *, online: bool) -> None:
        now = self._wall_clock()
        payload = msgspec.json.encode({"online": online, "timestamp": now // 1_000_000})
        try:
            self._publish.ready()
            self._publish(Alert(self._topic, payload, 1, now, retain=True))
        except LogError as error:
            # The message is retained in any case; streams with `STATE` lack it.
            logger.warning("%s: the log refuses it: %s", self._topic.decode(), error)
