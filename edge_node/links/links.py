"""The node's links, their epochs, and the release of records that hubs have."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import ssl
from collections.abc import Callable

from weft.config.links import Link
from weft.config.models import EdgeConfig
from weft.edge_node.check import Flow, carried_streams
from weft.edge_node.links import acknowledged_file, conflicts, hub_high_watermarks, orders
from weft.edge_node.links.boot_clocks import BootClocks
from weft.edge_node.links.comparison import compared
from weft.edge_node.links.conflicts import Conflicts
from weft.edge_node.links.hub_high_watermarks import HubHighWatermarks
from weft.edge_node.links.orders import Orders, without_policy
from weft.edge_node.links.pull.puller import LinkPuller, carrier
from weft.edge_node.links.source import OfferedStream, SegmentLogSource
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.network.tls.files import ClientTlsFiles
from weft.network.token_file import read_token
from weft.protocols.batch import ClockReading
from weft.protocols.lane import NodeName
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.replication.attempts.epochs import Epochs
from weft.replication.liveness import SECOND
from weft.replication.release import Party, ReleaseLedger
from weft.replication.report_ride import LatestReport
from weft.replication.runner import ConfigDoor, LinkIdentity, LinkSettings, no_token, run_link
from weft.replication.runner.messages import MessageTaker
from weft.replication.runner.proxy import LinkProxy
from weft.replication.settings import SenderSettings
from weft.replication.status import LinkState, LinkStatus
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import LogError, SegmentLog
from weft.storage.segment_log.sealed.disk import disk_of

logger = logging.getLogger(__name__)

LAST_WORD_S = 1.0
"""Time in which connected links announce that the node stops. A hub without a last word cannot know what it lacks."""


class Links:
    """All links of a node. Event loop's thread only.

    Make it before anything is appended to the log that was just opened: it then determines the end of the records sent
    to hubs (``edge_node.links.hub_high_watermarks``). It blocks on the disk, and a disk error does not make it fail.

    Args:
        config_door: takes configurations from the hub of a link that allows it.
        tls: for ``https`` hubs, instead of the files that links name.
    """

    def __init__(
        self,
        config: EdgeConfig,
        log: SegmentLog,
        *,
        wall_clock: Callable[[], int],
        software: str = "weft",
        filesystem: FileSystem | None = None,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        clock_reading: Callable[[], ClockReading] | None = None,
        clock_error: Callable[[], int] = lambda: SECOND,
        config_door: ConfigDoor | None = None,
    ) -> None:
        self._config_door = config_door
        self._config = config
        self._flow = Flow(config)
        self._log = log
        self._wall_clock = wall_clock
        boot = clock_reading().boot_id if clock_reading is not None else 0
        self._identity = LinkIdentity(config.tenant, config.node, log.log_id, software, boot)
        self._filesystem = filesystem or disk_of(config.data_dir)
        self._tls = tls
        self._epochs = epoch_file(self._filesystem, os.path.join(config.data_dir, "links", "epoch"))
        self._rng = rng or random.Random()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Link -> its task, until that has ended."""
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks of removed or changed links that are still ending."""
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._carried = _carried(config)
        self._watermarks = self._high_watermarks()
        path = os.path.join(config.data_dir, "links", acknowledged_file.FILE)
        self._acknowledged = acknowledged_file.AcknowledgedFile(self._filesystem, path, log.log_id)
        self.statuses = [LinkStatus(name) for name in config.links]
        """Status of each link, updated while it runs."""
        parties = {
            self._log.stream(stream): [Party("link", link) for link, own in self._carried.items() if stream in own]
            for stream in self._streams()
        }
        self.ledger = ReleaseLedger(parties, self._log.release)
        """Records that the log may forget once all readers have them."""
        self.clocks = BootClocks(log, clock_reading, wall_clock, clock_error)
        """The clocks of the boots that wrote the log. They need ``look`` now and then."""
        path = os.path.join(config.data_dir, "links", orders.FILE)
        self.orders = Orders(self._filesystem, path, lambda: wall_clock() + self.clocks.correction())
        """Policies of the links, and the orders of operators to them."""
        self.report = LatestReport()
        """Report of the node's disk and functions, for the hubs."""
        self.taker: Callable[[str], MessageTaker | None] = lambda _: None
        """Taker of the hub's messages, by link; None for a link that takes none."""
        self.conflicts = self._known_conflicts()
        """Links that hubs refuse because another copy of the log has taken over. They need ``look`` now and then."""

    def start(self) -> None:
        """Start every link; links connect, and reconnect after trouble, by themselves."""
        self._keeper = asyncio.create_task(self._acknowledged.keep())
        for status in self.statuses:
            self._start(status)

    async def until_compared(self, stopping: asyncio.Event | None = None) -> None:
        """Wait for the hubs' first answers before anything is appended, and record the conflicts that they report.

        A log created by this start does not wait: no hub can have any of it.

        Args:
            stopping: ends the wait.
        """
        awaited = {
            name: self._config.links[name]
            for name, streams in self._carried_if_conflicts_count().items()
            if streams and not self._log.recovery.created and name not in self.conflicts.reasons
        }
        await compared(awaited, self.statuses, stopping, clock=asyncio.get_running_loop().time)
        self.conflicts.look(self.statuses)

    def adopt(self, config: EdgeConfig) -> None:
        """Run the links of another configuration of the same node from now on. Unchanged links continue, and take over
        another policy as they are.

        New and changed links connect once all removed ones have ended: two of them would bring the same streams to the
        same hub, and take them from each other.

        Raises:
            ValueError: the log cannot have one of the streams; nothing has changed.
        """
        flow, carried = Flow(config), _carried(config)
        numbers = {stream: self._log.stream(stream) for streams in carried.values() for stream in streams}
        same = {
            name
            for name, link in config.links.items()
            if (before := self._config.links.get(name)) is not None
            and without_policy(link) == without_policy(before)
            and {stream: _offered(flow, stream) for stream in carried[name]}
            == {stream: _offered(self._flow, stream) for stream in self._carried[name]}
        }
        for name in self._tasks.keys() - same:
            task = self._tasks.pop(name)
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)
        # Joins before leaves: a stream that moves to another link always has a party that holds its records.
        for party, streams in ((Party("link", name), streams) for name, streams in carried.items()):
            for stream in set(streams) - set(self._carried.get(party.name, ())):
                self.ledger.join(party, numbers[stream])
        for party, streams in ((Party("link", name), streams) for name, streams in self._carried.items()):
            for stream in set(streams) - set(carried.get(party.name, ())):
                self.ledger.leave(party, self._log.stream(stream))
        self._config, self._flow, self._carried = config, flow, carried
        for name in same:
            self.orders.control(name, config.links[name])
        known = {status.name: status for status in self.statuses}
        # In place: other objects hold this list.
        self.statuses[:] = [known[name] if name in same else LinkStatus(name) for name in config.links]
        self.conflicts.carry(self._carried_if_conflicts_count())
        for status in self.statuses:
            if self._keeper is not None and status.name not in same:
                self._start(status)

    def _start(self, status: LinkStatus) -> None:
        name = status.name
        streams = {stream: _offered(self._flow, stream) for stream in self._carried[name]}
        released = functools.partial(self._released, name, self._carried[name])
        source = SegmentLogSource(
            self._log, streams, released, self._wall_clock, self._watermarks, self.clocks,
            self._acknowledged.acknowledged,
        )  # fmt: skip
        self._tasks[name] = asyncio.create_task(self._run(status, self._config.links[name], source))

    def acknowledge_alarms(self) -> list[str]:
        """End the alarms of hubs that have lost records, at an operator's request; return them."""
        ended = self._acknowledged.acknowledged.acknowledge()
        for status in self.statuses:
            status.alarm = ""
        return ended

    async def pause(self, name: str, *, is_paused: bool) -> None:
        """Let the data of a link wait, or go on, also after a restart; of all links without a name.

        Raises:
            ValueError: there is no such link.
            OSError: the order cannot be stored: it counts until the node stops.
        """
        if not self.statuses or (name and name not in self._config.links):
            raise ValueError(f"there is no link {name!r}; links: {', '.join(self._config.links) or 'none'}")
        for status in self.statuses:
            if name in ("", status.name):
                control = self.orders.control(status.name, self._config.links[status.name])
                try:
                    await control.pause(is_paused)
                finally:
                    control.describe(status)

    async def close(self) -> None:
        """Stop every link. Records that hubs have not acknowledged stay in the log.

        A connected link that has sent everything sends its last word: call this when the log accepts no more records.
        """
        await self._say_last_words()
        tasks = [*self._tasks.values(), *self._ended, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self.orders.save(self._config.links)
        await asyncio.to_thread(self._watermarks.close)
        await self._acknowledged.save()

    async def _say_last_words(self) -> None:
        taken = [self._tasks[status.name] for status in self.statuses if status.is_taken and status.name in self._tasks]
        if not taken:
            return
        with contextlib.suppress(TimeoutError, LogError):
            async with asyncio.timeout(LAST_WORD_S):
                # The last word covers all records of the log: links send only durable ones, so it has to wait for the
                # disk.
                await self._log.durable()
                self._stopping.set()
                await asyncio.wait(taken)

    @property
    def is_unsent(self) -> bool:
        """Return whether no hub has records of this log under the node's name; False also when that is unknown."""
        return self._watermarks.is_unsent

    def record_new_name(self, name: NodeName) -> None:
        """Note that the log was given a name. Blocks on the disk; a failure is logged."""
        try:
            self._watermarks.record_new_name(name)
        except OSError as error:
            logger.warning("another rename will need the hubs, also if they get nothing until then: %s", error)

    def waiting(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (link, stream) -> number of records not known to be at the hub, and of numbers unknown to it.

        Pairs that the hub knows completely are left out.
        """
        found = {}
        begins = self._log.begins()
        for link, streams in self._carried.items():
            for name in streams:
                stream = self._log.stream(name)
                held, end = self._log.ranges(stream), self._log.next_seq(stream)
                held.remove(0, begins.get(stream, 0))
                party = Party("link", link)
                counts = self.ledger.lacks(party, stream, held), self.ledger.lacks(party, stream, [(0, end)])
                if any(counts):
                    found[link, name] = counts
        return found

    def _streams(self) -> set[str]:
        return {stream for streams in self._carried.values() for stream in streams}

    def _released(self, link: str, streams: tuple[str, ...], stream: int, ranges: RangeSet) -> None:
        # A task that is ending may still report acknowledgements for a stream that the link no longer carries.
        if self._carried.get(link) == streams or any(
            self._log.stream(name) == stream for name in self._carried.get(link, ())
        ):
            self.ledger.released(Party("link", link), stream, ranges)

    def _puller(self, status: LinkStatus) -> LinkPuller:
        name = status.name
        return LinkPuller(
            status,
            lambda: link.pull if (link := self._config.links.get(name)) else None, self._log,
            lambda stream, hub: carrier(stream, hub, self._carried, self.statuses),
            lambda stream: _offered(self._flow, stream), self._watermarks.get, lambda: self._may_pull(name),
        )  # fmt: skip

    def _may_pull(self, name: str) -> bool:
        """Return whether a hub may ask a link for records. One that allows none leaves the word to those that do, which
        may lead to the same hub, and says no itself if there are none."""
        allowed = {link for link, of in self._config.links.items() if of.pull is not None}
        return name in allowed or not allowed

    def _carried_if_conflicts_count(self) -> dict[str, list[int]]:
        """Return link -> the numbers of its streams, of links that stop the node at a conflict."""
        return {
            name: [self._log.stream(stream) for stream in streams]
            for name, streams in self._carried.items()
            if self._config.links[name].on_conflict == "stop"
        }

    def _known_conflicts(self) -> Conflicts:
        path = os.path.join(self._config.data_dir, "links", conflicts.FILE)
        return Conflicts(self._filesystem, path, self._carried_if_conflicts_count(), self._log.refuse)

    def _high_watermarks(self) -> HubHighWatermarks:
        # A stream that is new to the log begins at a number that cannot have been used before.
        opened = {stream: self._log.next_seq(self._log.stream(stream)) for stream in self._streams()}
        opened.update(self._log.recovery.lanes)
        path = os.path.join(self._config.data_dir, *hub_high_watermarks.FILE)
        name = NodeName(self._config.tenant, self._config.node)
        return HubHighWatermarks(self._filesystem, path, self._log.log_id, opened, name=name)

    async def _run(self, status: LinkStatus, link: Link, source: SegmentLogSource) -> None:
        settings = link_settings(link, self.report)
        # A link that is still ending would bring the same streams to the hub, and both would take the lanes from each
        # other.
        if self._ended:
            await asyncio.wait(set(self._ended))
        while True:
            try:
                await run_link(
                    source, self._identity, settings, self._epochs, status,
                    tls=self._tls, rng=self._rng, wall_clock=self._wall_clock, clocks=self.clocks,
                    acknowledged=self._acknowledged.acknowledged, stopping=self._stopping,
                    config=self._config_door if link.config_from_hub != "never" else None,
                    control=self.orders.control(status.name, link),
                    taker=self.taker(status.name), puller=self._puller(status),
                )  # fmt: skip
            except Exception as error:
                # run_link handles failures of networks, hubs and disks; this is a fault in the code, and must not stop
                # the node.
                logger.exception("link %s failed", status.name)
                status.state, status.last_error = LinkState.WAITING, f"internal fault: {error!r}"
                status.last_error_time = self._wall_clock()
            if self._stopping.is_set():
                return
            await asyncio.sleep(settings.retry_max_s)


def _carried(config: EdgeConfig) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(stream for stream in carried_streams(link, config) if stream not in STREAMS_THAT_STAY)
        for name, link in config.links.items()
    }


def _offered(flow: Flow, stream: str) -> OfferedStream:
    return OfferedStream(flow.patterns(stream), PayloadKind[flow.payload(stream).kind.upper()])


def epoch_file(filesystem: FileSystem, path: str) -> Epochs:
    """Return the log's epoch, kept in decimal in ``<data_dir>/links/epoch``.

    Hubs know an epoch by the log's lanes and not by the link that brought it: a link under another name, or a second
    one to the same hub, must continue where the first stopped.
    """

    def write(data: bytes) -> None:
        filesystem.make_directory(os.path.dirname(path))
        write_atomically(filesystem, path, data)

    return Epochs(path, functools.partial(filesystem.read, path), write)


def link_settings(link: Link, report: LatestReport | None = None) -> LinkSettings:
    """Return a link's settings from the node's configuration."""
    return LinkSettings(
        urls=link.to,
        token=no_token if link.token_file is None else functools.partial(read_token, link.token_file),
        tls=link_tls(link),
        redirects=link.redirects,
        proxy=LinkProxy(link.proxy, link.proxy_username, link.proxy_password_file, link.proxy_password_env),
        retry_min_s=link.retry_min_s,
        retry_max_s=link.retry_max_s,
        hold_at_start_s=link.hold_at_start_s,
        sender=SenderSettings(
            window_bytes=link.window_bytes,
            compression_level=link.compression_level,
            mark_interval=int(link.mark_interval_s * SECOND),
            ping_interval=int(link.ping_interval_s * SECOND),
            silence=int(link.silence_s * SECOND),
            ack_timeout=int(link.ack_timeout_s * SECOND),
            cluster_id=link.cluster or "",
            report=report,
        ),
    )


def link_tls(link: Link) -> ClientTlsFiles:
    """Return the files of a link with TLS."""
    return ClientTlsFiles(ca_file=link.ca_file, certificate=link.certificate, key=link.key)
