"""Changes of a running node's configuration: checked as a whole, taken over between two turns, or not at all.

Each part of the node that can change while it runs is a ``Part``. A new configuration is the running one with the
sections of these parts replaced, so what needs a restart stays as it is, and is named.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from weft.config.errors import format_path
from weft.config.models import EdgeConfig
from weft.config.reading.changes import changed_settings
from weft.edge_node.check import check, intake_patterns, is_derived
from weft.edge_node.control.client import ReplayReply, ReplayRequest
from weft.edge_node.from_config import stream_policies, suppressed_streams
from weft.edge_node.links.links import Links
from weft.edge_node.servers.broker.broker import Broker
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.functions.before_log import FunctionsBeforeLog
    from weft.edge_node.functions.node_part import NodeFunctions
    from weft.edge_node.functions.runtime.counters import FunctionCounters

logger = logging.getLogger(__name__)

NAMED_MAX = 20
"""Settings that are named in one line."""

Undo = Callable[[], None]


class ConfigUnusable(Exception):
    """A configuration that the node does not take over; the sentence says why, and what to do."""


class Part(Protocol):
    """A part of the node whose settings can change while it runs."""

    name: str

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Work by another configuration from now on, without waiting for anything; or raise, and change nothing.

        Returns:
            What goes back to the former configuration. It must not fail.
        """
        ...


class Version(NamedTuple):
    """Version of the configuration that the node works with."""

    number: int
    """1 at the start of the node, and one more with each change."""
    digest: str
    """Beginning of a checksum of all settings: nodes with the same settings have the same."""
    since: float
    """Time since which it is in force, seconds since 1970."""


class Outcome(NamedTuple):
    """Result of a change."""

    version: Version
    applied: list[str]
    """Settings that are in force now."""
    restart: list[str]
    """Settings that differ in the file and need a restart."""


class ConfigFile(NamedTuple):
    """The file that a node's configuration came from."""

    path: str
    read: Callable[[], EdgeConfig]
    """Reads and checks it again. Blocks; raises ``ConfigUnusable`` when it is not valid."""


class Reconfigure:
    """The one way in which a node's configuration changes while it runs. Event loop's thread only."""

    def __init__(
        self, running: EdgeConfig, parts: Sequence[Part], wall_clock: Callable[[], int], file: ConfigFile | None = None
    ) -> None:
        """Start with the configuration that the parts were made with.

        Args:
            parts: in the order in which they take a change over.
            wall_clock: ns since 1970.
            file: what ``reload`` reads; None when there is no file.
        """
        self.running = running
        self._file = file
        self._one_at_a_time = asyncio.Lock()
        self._parts = parts
        self._wall_clock = wall_clock
        self.version = Version(1, digest_of(running), wall_clock() / 1e9)
        self._restart: list[str] = []
        self._refused = ""

    async def reload(self) -> Outcome:
        """Read the configuration's file again and take over what has changed.

        Raises:
            ConfigUnusable: the file is not valid, or cannot be taken over. The node goes on as before.
        """
        if self._file is None:
            raise ConfigUnusable("the node was started without a configuration file: restart it with one")
        async with self._one_at_a_time:
            try:
                wanted = await asyncio.to_thread(self._file.read)
            except ConfigUnusable as error:
                self._refused = str(error)
                logger.error(
                    "%s is not valid, and the node could not start with it. The node keeps its settings: %s",
                    self._file.path, error,
                )  # fmt: skip
                raise
            outcome = self.apply(wanted)
            if not outcome.applied and not outcome.restart:
                logger.info("no setting in %s has changed", self._file.path)
            return outcome

    def apply(self, wanted: EdgeConfig) -> Outcome:
        """Take over what can change while the node runs.

        It is one callback of the loop, so no publish is between two of the parts.

        Raises:
            ConfigUnusable: nothing has changed. A part has refused, or the new sections contradict settings that need
                a restart.
        """
        now = msgspec.structs.replace(self.running, streams=wanted.streams, links=wanted.links, sources=wanted.sources)
        applied, restart = changed_settings(self.running, now), changed_settings(now, wanted)
        try:
            if applied:
                self._switch(now, restart)
        except ConfigUnusable as error:
            self._refused = str(error)
            logger.error("the node keeps its settings, as it cannot take over the changed ones: %s", error)
            raise
        self._restart, self._refused = sorted(restart), ""
        if applied:
            self.version = Version(self.version.number + 1, digest_of(now), self._wall_clock() / 1e9)
            logger.info("configuration %d (%s): %s", self.version.number, self.version.digest, _named(applied))
        if restart:
            logger.warning("settings have changed and need a restart: %s", _named(restart))
        return Outcome(self.version, sorted(applied), self._restart)

    def facts(self) -> dict[str, Any]:
        """Return what the node's status says of its configuration."""
        return {**self.version._asdict(), "restart": list(self._restart), "refused": self._refused}

    def _switch(self, now: EdgeConfig, restart: list[str]) -> None:
        findings = check(now)
        if findings:
            told = "; ".join(f"{format_path(path)}: {message}" for path, message in findings[:NAMED_MAX])
            raise ConfigUnusable(f"{told}. Restart the node, as {_named(restart)} changed with it" if restart else told)
        undone: list[tuple[Part, Undo]] = []
        for part in self._parts:
            try:
                undone.append((part, part.adopt(self.running, now)))
            except Exception as error:
                for _, undo in reversed(undone):
                    undo()
                if not isinstance(error, ValueError | OSError):
                    logger.exception("the part %s failed", part.name)
                raise ConfigUnusable(f"{part.name}: {error or type(error).__name__}") from error
        self.running = now


class StreamsPart:
    """Streams: their retention, and the topics that devices publish to."""

    name = "streams"

    def __init__(self, log: SegmentLog, broker: Broker) -> None:
        """Change the log's policies and the broker's routes."""
        self._log = log
        self._broker = broker

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Route by the patterns of ``now``. Streams that are there no more keep their records and their retention.

        Raises:
            ValueError: the log cannot have one of the streams, or a pattern is not valid.
        """
        self._put(now)
        return lambda: self._put(before)

    def _put(self, config: EdgeConfig) -> None:
        policies = {self._log.stream(name): policy for name, policy in stream_policies(config).items()}
        suppressed = suppressed_streams(config, self._log)
        self._broker.reroute(intake_patterns(config))
        self._broker.resent.suppress(suppressed)
        for stream, policy in policies.items():
            self._log.set_policy(stream, policy)


class BeforeLogPart:
    """Functions on messages that are not in the log yet. Their code is loaded once a node has some."""

    name = "functions before the log"

    def __init__(self, log: SegmentLog, broker: Broker) -> None:
        """Start with none."""
        self._log = log
        self._broker = broker
        self._functions: dict[int, FunctionsBeforeLog] = {}

    def put(self, config: EdgeConfig) -> None:
        """Have the functions of a configuration work from now on.

        Raises:
            ValueError, OSError: a function cannot work; nothing has changed.
        """
        if not self._functions and all(stream.raw != "discard" for stream in config.streams.values()):
            return
        from weft.edge_node.functions.before_log import functions_before_log

        self._functions = functions_before_log(config, self._log, self._functions)
        self._broker.ingest.work_before_log(self._functions)

    def counters(self, behind: Mapping[str, FunctionCounters]) -> dict[str, FunctionCounters]:
        """Return the figures of each stream.

        Args:
            behind: figures of the functions that read what earlier settings stored, and keep the streams' marks.
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


class FunctionsPart:
    """Derived streams. The code of functions is loaded once a node has some."""

    name = "functions"

    def __init__(self, make: Callable[[EdgeConfig], NodeFunctions]) -> None:
        """Start with no functions.

        Args:
            make: makes the functions of a configuration.
        """
        self._make = make
        self._functions: NodeFunctions | None = None
        self._is_started = False

    def make(self, config: EdgeConfig) -> None:
        """Make the functions of a configuration. Blocks on the disk.

        Raises:
            OSError, LogFailed, UnsupportedVersion: as ``NodeFunctions``.
        """
        self._functions = self._make(config)

    def start(self) -> None:
        """Let them work."""
        self._is_started = True
        if self._functions is not None:
            self._functions.start()

    async def close(self) -> None:
        """Stop them."""
        if self._functions is not None:
            await self._functions.close()

    def counters(self) -> dict[str, FunctionCounters]:
        """Return the figures of each derived stream."""
        return self._functions.counters() if self._functions is not None else {}

    async def replay(self, request: ReplayRequest) -> ReplayReply:
        """Begin to compute a derived stream again, or say how far that is."""
        from weft.edge_node.functions.runtime.replays import ReplayRefused

        if self._functions is None:
            return ReplayReply(error="the node has no derived streams")
        try:
            progress = await self._functions.replay(request.stream, request.into)
        except ReplayRefused as error:
            return ReplayReply(error=str(error))
        return ReplayReply(progress.rows, progress.left)

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the functions of ``now``.

        Raises:
            ValueError: as ``NodeFunctions.adopt``.
        """
        if self._functions is None:
            if not any(map(is_derived, now.streams.values())):
                return lambda: None
            self.make(before)
            self.start()
        functions = self._functions
        assert functions is not None
        functions.adopt(now)
        return lambda: functions.adopt(before)


class LinksPart:
    """Links: what they carry, and how they reach their hubs."""

    name = "links"

    def __init__(self, links: Links) -> None:
        """Change these links."""
        self._links = links

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the links of ``now``.

        Raises:
            ValueError: as ``Links.adopt``.
        """
        self._links.adopt(now)
        return lambda: self._links.adopt(before)


def digest_of(config: EdgeConfig) -> str:
    """Return the beginning of a checksum of all settings."""
    return hashlib.blake2b(msgspec.json.encode(config, order="deterministic"), digest_size=4).hexdigest()


def _named(settings: Sequence[str]) -> str:
    more = len(settings) - NAMED_MAX
    return ", ".join(sorted(settings)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
