"""The node's links, their epochs, and the release of records that hubs have."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from weft.config.links import Link, LinkPolicy
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.units import approximate_duration
from weft.edge_node.check.streams import Flow, carried_streams
from weft.edge_node.links import high_watermarks
from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.edge_node.links.pulls import LinkPuller, carrier
from weft.edge_node.links.source import BootClocks, OfferedStream, SegmentLogSource
from weft.edge_node.part import Part, Undo
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.edge_node.timing import seconds
from weft.network.reload import read_token
from weft.network.tls import ClientTlsFiles
from weft.protocols.batch import ClockReading
from weft.protocols.lane import NodeName
from weft.protocols.link import NodeReport
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.replication.events import CanaryState, LinkState, LinkStatus
from weft.replication.flow_control import LatestReport, SenderSettings, in_trouble
from weft.replication.liveness import SECOND
from weft.replication.policy import BudgetRule, Order, PolicyRules, StreamWindows
from weft.replication.runner import ConfigReceiver, LinkIdentity, LinkSettings, no_token, run_link
from weft.replication.runner.control import LinkControl
from weft.replication.runner.settings import LinkProxy, MessageTaker, Stopping
from weft.replication.source import Epochs, Party, ReleaseLedger, intersection
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import LogError, SegmentLog
from weft.storage.segment_log.encryption import disk_of

# The first comparison of a log with the hubs. A start waits for it before it accepts messages.
#
# A log restored from an older copy reuses numbers that a hub has for other records. The node cannot detect such a
# start: its knowledge of hubs was restored with the log. Only the hub can, with the first answer to a link
# (docs/decisions/0122).

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.005
WARNED_AFTER_S = 1.0
"""Time after which a log line reports the wait: most hubs answer sooner."""


async def compared(
    holds: Mapping[str, float],
    statuses: Sequence[LinkStatus],
    stopping: asyncio.Event | None = None,
    *,
    clock: Callable[[], float],
) -> None:
    """Wait until the hub of each of these links has reported what it holds of the log, for each no longer than its
    ``hold_at_start``.

    Args:
        holds: link that the start waits for -> its ``hold_at_start`` in seconds.
        statuses: of all links of the node.
        stopping: ends the wait.
        clock: monotonic seconds.
    """
    began, has_warned = clock(), False
    while True:
        waited = clock() - began
        open_ = [
            status.name
            for status in statuses
            if holds.get(status.name, 0) > 0 and not (status.is_compared or status.conflict)
        ]
        late = [name for name in open_ if holds[name] > waited]
        if not late or (stopping is not None and stopping.is_set()):
            break
        if not has_warned and waited >= WARNED_AFTER_S:
            has_warned = True
            longest = max(holds[name] for name in late)
            logger.info(
                "clients wait until the hub of %s has reported what it holds of this log, at most %s (hold_at_start)",
                _names(late),
                approximate_duration(longest),
            )
        await asyncio.sleep(LOOK_INTERVAL_S)
    if open_ and not late:
        logger.warning(
            "messages are accepted from now on without the hub's report on this log: no answer on %s within "
            "hold_at_start. If the data_dir was restored from an older copy, the hub will refuse messages that are "
            "accepted until it answers",
            _names(open_),
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"link {name}" for name in sorted(names))


# Conflicts of identity: a hub refuses the node because another copy of its log has taken over.
#
# Both copies would use the same numbers, and the hub keeps the records of the first one that brings them. So a
# refused node stops acknowledging, as it does when its disk is full: devices keep their messages. It stops at its
# next start, too, before any link is up. It resumes once the hub accepts a lane of the link again.

CONFLICTS_FILE = "conflicts"
_DECODER = msgspec.json.Decoder(dict[str, str])


class Conflicts:
    """The conflicts of a node's links, kept across restarts. Event loop's thread; blocks on the disk at a change.

    Args:
        path: the file that keeps them.
        carried: link -> the numbers of the streams that it carries, for links with ``on_conflict: stop``.
        refuse: called for a stream with the reason why its records are refused; None when they are accepted.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        carried: Mapping[str, Iterable[int]],
        refuse: Callable[[int, str | None], None],
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._carried = {link: frozenset(streams) for link, streams in carried.items()}
        self._refuse = refuse
        self._refused: dict[int, str] = {}
        self._reported: set[str] = set()
        """Links with a log line that another one leads to the same hub."""
        self.reasons = {link: why for link, why in _read(filesystem, path).items() if link in self._carried}
        """Link -> reason why the node acknowledges nothing of the streams that it carries, and the remedy."""
        self._apply()

    def carry(self, carried: Mapping[str, Iterable[int]]) -> None:
        """Note that links carry other streams now. A removed link has no conflict."""
        self._carried = {link: frozenset(streams) for link, streams in carried.items()}
        self.reasons = {link: why for link, why in self.reasons.items() if link in self._carried}
        self._apply()

    def look(self, links: Iterable[LinkStatus]) -> None:
        """Note which links are in conflict now. A link that cannot connect keeps its state."""
        reasons, links = dict(self.reasons), list(links)
        for link in links:
            if link.name in self._carried:
                if link.conflict and not self._is_own(link, links):
                    reasons[link.name] = link.conflict
                elif link.conflict or link.is_taken:
                    reasons.pop(link.name, None)
        if reasons == self.reasons:
            return
        for name in reasons.keys() - self.reasons.keys():
            logger.error("link %s: devices get no acknowledgements: %s", name, reasons[name])
        for name in self.reasons.keys() - reasons.keys():
            logger.warning("link %s: the conflict is over: devices are acknowledged", name)
        self.reasons = reasons
        self._apply()
        try:
            self._write()
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): after a restart the node acknowledges until a link is refused",
                self._path,
                error,
            )

    def _is_own(self, refused: LinkStatus, links: Iterable[LinkStatus]) -> bool:
        """Return whether another link of this node to the same hub has taken over, not a copy."""
        own = self._carried[refused.name]
        same = (link for link in links if link.is_taken and link.cluster_id == refused.cluster_id)
        other = next((link for link in same if own & self._carried.get(link.name, frozenset())), None)
        if other is None:
            return False
        refused.last_error = (
            f"links {refused.name} and {other.name} bring the same streams to the same hub, and interrupt each "
            "other. Give one link all URLs of the hub, and remove the other link"
        )
        if refused.name not in self._reported:
            self._reported.add(refused.name)
            logger.error("%s", refused.last_error)
        return True

    def _apply(self) -> None:
        refused: dict[int, str] = {}
        for link, why in sorted(self.reasons.items()):
            for stream in self._carried[link]:
                refused.setdefault(stream, f"link {link}: {why}")
        for stream in self._refused.keys() | refused.keys():
            if self._refused.get(stream) != refused.get(stream):
                self._refuse(stream, refused.get(stream))
        self._refused = refused

    def _write(self) -> None:
        if self.reasons:
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, msgspec.json.encode(self.reasons))
        elif self._filesystem.exists(self._path):
            self._filesystem.remove(self._path)


def has_conflicts(data_dir: str) -> bool:
    """Return whether hubs refuse a stopped node's log, as far as its node has recorded."""
    return bool(_read(disk_of(data_dir), os.path.join(data_dir, "links", CONFLICTS_FILE)))


def _read(filesystem: FileSystem, path: str) -> dict[str, str]:
    try:
        return _DECODER.decode(filesystem.read(path))
    except (OSError, msgspec.MsgspecError):
        # Usually the file is missing. A damaged one counts as empty; a refused link reports the conflict again.
        return {}


# Policies of links: from the configuration, and what must outlive the process.
#
# ``<data_dir>/links/orders`` keeps which links an operator has paused, and the bytes that each link with a budget
# used in its last months. It is replaced at each order, and after each 5,000th of a budget.

ORDERS_FILE = "orders"
ORDERS_BYTES_MAX = 1 << 20
LINKS_MAX = 256
"""Links that are kept, the last changed ones: those of removed links stay for one that comes back."""


class _PersistedOrders(msgspec.Struct):
    paused: bool = False
    months: dict[str, int] = {}
    """First day of a budget's month -> its bytes."""


class Orders:
    """The orders to a node's links. Made before the links start, it blocks on the disk.

    Args:
        wall_clock: ns since 1970, as right as the node knows.
    """

    def __init__(self, filesystem: FileSystem, path: str, wall_clock: Callable[[], int]) -> None:
        self._filesystem = filesystem
        self._path = path
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._kept = self._read()
        self._controls: dict[str, LinkControl] = {}

    def control(self, name: str, link: Link) -> LinkControl:
        """Return the control of a link, with the link's present policy."""
        rules = rules_of(link)
        control = self._controls.get(name)
        if control is None:
            kept = self._kept.get(name, _PersistedOrders())
            control = self._controls[name] = LinkControl(
                rules,
                wall_clock=self._wall_clock,
                is_paused=kept.paused,
                counts=kept.months,
                save=functools.partial(self._save, name),
            )
        else:
            control.adopt(rules)
        return control

    def hurry(self) -> None:
        """Let all open links look at once for what there is to send."""
        for control in self._controls.values():
            control.hurry()

    async def save(self, names: Iterable[str]) -> None:
        """Store the counts of links that end. An error is logged."""
        for name in names:
            control = self._controls.get(name)
            if control is not None and control.policy.rules.budget is not None:
                try:
                    await control.save()
                except OSError as error:
                    logger.warning("the bytes that link %s used are not saved: %s", name, error)

    def _save(self, name: str, is_paused: bool, months: Mapping[str, int]) -> None:
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = _PersistedOrders(is_paused, dict(months))
            for other in list(self._kept)[:-LINKS_MAX]:
                del self._kept[other]
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, msgspec.json.encode(self._kept))

    def _read(self) -> dict[str, _PersistedOrders]:
        try:
            if self._filesystem.size(self._path) <= ORDERS_BYTES_MAX:
                return msgspec.json.decode(self._filesystem.read(self._path), type=dict[str, _PersistedOrders])
            reason = f"longer than {ORDERS_BYTES_MAX} bytes"
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error)
        logger.error(
            "%s cannot be read (%s): no link is paused now, and budgets count from 0. Pause links again with "
            "`weft link pause`",
            self._path,
            reason,
        )
        return {}


def rules_of(link: Link) -> PolicyRules:
    """Return the policy of a link's settings."""
    budget = link.budget
    return PolicyRules(
        order=Order(link.order),
        history_share=link.history_share,
        priorities=tuple(link.priorities.items()),
        rate=link.rate or 0,
        every=int(link.every_s * SECOND),
        schedule=tuple(
            StreamWindows.of(entry.streams, entry.between, entry.days, entry.zone) for entry in link.schedule
        ),
        budget=None if budget is None else BudgetRule(budget.size_bytes, budget.day, ZoneInfo(budget.zone)),
    )


def without_policy(link: Link) -> Link:
    """Return a link with the default policy: two links that are equal so differ in nothing that needs a connection."""
    defaults = LinkPolicy()
    return msgspec.structs.replace(link, **{name: getattr(defaults, name) for name in LinkPolicy.__struct_fields__})


PEER_LINK = "to the peer"
"""Name of the link to the node's peer beside those of the configuration, which have no spaces."""
PEER_HOLD_S = 10.0
"""Longest time for which a start waits for the peer's word, beside ``alone_after``."""
LAST_WORD_S = 1.0
"""Time in which connected links announce that the node stops. A hub without a last word cannot know what it lacks."""


class Links:
    """All links of a node. Event loop's thread only.

    Make it before anything is appended to the log that was just opened: it then determines the end of the records sent
    to hubs (``edge_node.links.high_watermarks``). It blocks on the disk, and a disk error does not make it fail.

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
        config_door: ConfigReceiver | None = None,
    ) -> None:
        self._config_door = config_door
        self._config = config
        self._flow = Flow(config)
        self.log, self.wall_clock = log, wall_clock
        boot = clock_reading().boot_id if clock_reading is not None else 0
        self.identity = LinkIdentity(config.tenant, config.node, log.log_id, software, boot)
        self._filesystem = filesystem or disk_of(config.data_dir)
        self._tls = tls
        self.epochs = epoch_file(self._filesystem, os.path.join(config.data_dir, "links", "epoch"))
        self._rng = rng or random.Random()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Link -> its task, until that has ended."""
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks of removed or changed links that are still ending."""
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = Stopping()
        self._carried = _carried(config)
        self.watermarks = self._high_watermarks()
        path = os.path.join(config.data_dir, "links", high_watermarks.ACKNOWLEDGED_FILE)
        self._acknowledged = high_watermarks.AcknowledgedFile(self._filesystem, path, log.log_id)
        self.statuses = [LinkStatus(name) for name in config.links]
        """Status of each link, updated while it runs."""
        self.peer = LinkStatus(PEER_LINK) if config.pair is not None else None
        """Status of the link to the node's peer, likewise; None for a node without one."""
        parties = {
            self.log.stream(stream): [Party("link", link) for link, own in self._carried.items() if stream in own]
            for stream in self._streams()
        }
        self.ledger = ReleaseLedger(parties, self.log.release)
        """Records that the log may forget once all readers have them."""
        self.clocks = BootClocks(log, clock_reading, wall_clock, clock_error)
        """The clocks of the boots that wrote the log. They need ``look`` now and then."""
        path = os.path.join(config.data_dir, "links", ORDERS_FILE)
        self.orders = Orders(self._filesystem, path, lambda: wall_clock() + self.clocks.correction())
        """Policies of the links, and the orders of operators to them."""
        self.report = LatestReport()
        """Report of the node's disk and functions, for the hubs."""
        self.taker: Callable[[str], MessageTaker | None] = lambda _: None
        """Taker of the hub's messages, by link; None for a link that takes none."""
        self.conflicts = self._known_conflicts()
        """Links that hubs refuse because another copy of the log has taken over."""

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
        holds = {name: link.hold_at_start_s for name, link in self._config.links.items()}
        if self._config.pair is not None:
            holds[PEER_LINK] = min(self._config.pair.alone_after_s, PEER_HOLD_S)
        awaited = {
            name: holds[name]
            for name, streams in self._carried_if_conflicts_count().items()
            if streams and not self.log.recovery.created and name not in self.conflicts.reasons
        }
        statuses = self.statuses if self.peer is None else [*self.statuses, self.peer]
        await compared(awaited, statuses, stopping, clock=asyncio.get_running_loop().time)
        self.look()

    def tell(self, report: NodeReport) -> None:
        """Let hubs have a report with a message that is sent anyway; at once if a function's trouble began or ended."""
        before, self.report.report = self.report.report, report
        if before is not None and in_trouble(before) != in_trouble(report):
            self.orders.hurry()

    def look(self) -> None:
        """Note which links are in conflict, now and then. While the peer has other records under this log's numbers,
        no link runs: hubs keep the records that come first."""
        self.conflicts.look(self.statuses if self.peer is None else [*self.statuses, self.peer])
        if self.peer is None:
            return
        is_held = PEER_LINK in self.conflicts.reasons
        for status in self.statuses:
            if is_held and status.name in self._tasks:
                self._end(status.name)
                status.state = LinkState.WAITING
                status.last_error = f"nothing is sent: {self.conflicts.reasons[PEER_LINK]}"
            elif not is_held and self._keeper is not None and status.name not in self._tasks:
                self._start(status)

    @property
    def compared_hubs(self) -> set[str] | None:
        """Return the ids of the hubs with which this log was compared since the start; None while one is missing."""
        found = set()
        for status in self.statuses:
            if self._carried[status.name]:
                if not status.is_compared or status.conflict:
                    return None
                found.add(status.cluster_id)
        return found

    def at_all_hubs(self, stream: str) -> RangeSet:
        """Return the numbers of a stream that the hub of each link that carries it has, by its word since the start,
        also where the log has them no more. Empty while a hub was not compared with this log."""
        carriers = [status.cluster_id for status in self.statuses if stream in self._carried[status.name]]
        if not carriers or self.compared_hubs is None:
            return RangeSet()
        held = [self._acknowledged.acknowledged.held(hub, stream) for hub in carriers]
        return functools.reduce(intersection, held)

    def _end(self, name: str) -> None:
        """End a link; another one waits until it has ended."""
        task = self._tasks.pop(name)
        task.cancel()
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)

    def adopt(self, config: EdgeConfig) -> None:
        """Run the links of another configuration of the same node from now on. Unchanged links continue, and take over
        another policy as they are.

        New and changed links connect once all removed ones have ended: two of them would bring the same streams to the
        same hub, and interrupt each other.

        Raises:
            ValueError: the log cannot have one of the streams; nothing has changed.
        """
        flow, carried = Flow(config), _carried(config)
        numbers = {stream: self.log.stream(stream) for streams in carried.values() for stream in streams}
        same = {
            name
            for name, link in config.links.items()
            if (before := self._config.links.get(name)) is not None
            and without_policy(link) == without_policy(before)
            and {stream: offered(flow, stream) for stream in carried[name]}
            == {stream: offered(self._flow, stream) for stream in self._carried[name]}
        }
        for name in self._tasks.keys() - same:
            self._end(name)
        # Joins before leaves: a stream that moves to another link always has a party that holds its records.
        for party, streams in ((Party("link", name), streams) for name, streams in carried.items()):
            for stream in set(streams) - set(self._carried.get(party.name, ())):
                self.ledger.join(party, numbers[stream])
        for party, streams in ((Party("link", name), streams) for name, streams in self._carried.items()):
            for stream in set(streams) - set(carried.get(party.name, ())):
                self.ledger.leave(party, self.log.stream(stream))
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
        if PEER_LINK in self.conflicts.reasons:
            return
        streams = {stream: offered(self._flow, stream) for stream in self._carried[name]}
        released = functools.partial(self._released, name, self._carried[name])
        source = SegmentLogSource(
            self.log, streams, released, self.wall_clock, self.watermarks, self.clocks, self._acknowledged.acknowledged
        )
        self._tasks[name] = asyncio.create_task(self._run(status, self._config.links[name], source))

    def acknowledge_alarms(self) -> list[str]:
        """End the alarms of hubs that have lost records, at an operator's request; return them."""
        ended = self._acknowledged.acknowledged.acknowledge()
        for status in self.statuses:
            status.alarm = ""
        return ended

    async def pause(self, name: str, *, is_paused: bool) -> None:
        """Let the data of a link wait, or continue, also after a restart; of all links without a name.

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

    async def close(self, renamed_to: str = "") -> None:
        """Stop every link. Records that hubs have not acknowledged stay in the log.

        A connected link that has sent everything sends its last word: call this when the log accepts no more records.

        Args:
            renamed_to: the name that the log has now, if it never sends under this one again.
        """
        self._stopping.renamed_to = renamed_to
        await self._send_last_words()
        tasks = [*self._tasks.values(), *self._ended, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self.orders.save(self._config.links)
        await asyncio.to_thread(self.watermarks.close)
        await self._acknowledged.save()

    async def _send_last_words(self) -> None:
        taken = [self._tasks[status.name] for status in self.statuses if status.is_taken and status.name in self._tasks]
        if not taken:
            return
        with contextlib.suppress(TimeoutError, LogError):
            async with asyncio.timeout(LAST_WORD_S):
                # The last word covers all records of the log: links send only durable ones, so it has to wait for the
                # disk.
                await self.log.durable()
                self._stopping.set()
                await asyncio.wait(taken)

    @property
    def is_unsent(self) -> bool:
        """Return whether no hub has records of this log under the node's name; False also when that is unknown."""
        return self.watermarks.is_unsent

    def record_new_name(self, name: NodeName) -> None:
        """Note that the log was given a name. Blocks on the disk; a failure is logged."""
        try:
            self.watermarks.record_new_name(name)
        except OSError as error:
            logger.warning("another rename will need the hubs, also if they get nothing until then: %s", error)

    def waiting(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (link, stream) -> number of records not known to be at the hub, and of numbers unknown to it.

        Pairs that the hub knows completely are left out.
        """
        found = {}
        begins = self.log.begins()
        for link, streams in self._carried.items():
            for name in streams:
                stream = self.log.stream(name)
                held, end = self.log.ranges(stream), self.log.next_seq(stream)
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
            self.log.stream(name) == stream for name in self._carried.get(link, ())
        ):
            self.ledger.released(Party("link", link), stream, ranges)

    def _puller(self, status: LinkStatus) -> LinkPuller:
        name = status.name
        return LinkPuller(
            status,
            lambda: link.pull if (link := self._config.links.get(name)) else None,
            self.log,
            lambda stream, hub: carrier(stream, hub, self._carried, self.statuses),
            lambda stream: offered(self._flow, stream),
            self.watermarks.get,
            lambda: self._may_pull(name),
        )

    def _may_pull(self, name: str) -> bool:
        """Return whether a hub may ask a link for records. One that allows none leaves the word to those that do, which
        may lead to the same hub, and says no itself if there are none."""
        allowed = {link for link, of in self._config.links.items() if of.pull is not None}
        return name in allowed or not allowed

    def _carried_if_conflicts_count(self) -> dict[str, list[int]]:
        """Return link -> the numbers of its streams, of links that stop the node at a conflict, and of the peer's."""
        found = {
            name: [self.log.stream(stream) for stream in streams]
            for name, streams in self._carried.items()
            if self._config.links[name].on_conflict == "stop"
        }
        if self._config.pair is not None:
            found[PEER_LINK] = [self.log.stream(stream) for stream in self._streams()]
        return found

    def _known_conflicts(self) -> Conflicts:
        path = os.path.join(self._config.data_dir, "links", CONFLICTS_FILE)
        return Conflicts(self._filesystem, path, self._carried_if_conflicts_count(), self.log.refuse)

    def _high_watermarks(self) -> HubHighWatermarks:
        # A stream that is new to the log begins at a number that cannot have been used before.
        opened = {stream: self.log.next_seq(self.log.stream(stream)) for stream in self._streams()}
        opened.update(self.log.recovery.lanes)
        path = os.path.join(self._config.data_dir, *high_watermarks.FILE)
        name = NodeName(self._config.tenant, self._config.node)
        return HubHighWatermarks(self._filesystem, path, self.log.log_id, opened, name=name)

    async def _run(self, status: LinkStatus, link: Link, source: SegmentLogSource) -> None:
        settings = link_settings(link, self.report)
        # A link that is still ending would bring the same streams to the hub, and both would take the lanes from each
        # other.
        if self._ended:
            await asyncio.wait(set(self._ended))
        while True:
            try:
                await run_link(
                    source,
                    self.identity,
                    settings,
                    self.epochs,
                    status,
                    tls=self._tls,
                    rng=self._rng,
                    wall_clock=self.wall_clock,
                    clocks=self.clocks,
                    acknowledged=self._acknowledged.acknowledged,
                    stopping=self._stopping,
                    config=self._config_door if link.config_from_hub != "never" else None,
                    control=self.orders.control(status.name, link),
                    taker=self.taker(status.name),
                    puller=self._puller(status),
                )
            except Exception as error:
                # run_link handles failures of networks, hubs and disks; this is a fault in the code, and must not stop
                # the node.
                logger.exception("link %s failed", status.name)
                status.state, status.last_error = LinkState.WAITING, f"internal fault: {error!r}"
                status.last_error_time = self.wall_clock()
            if self._stopping.is_set():
                return
            await asyncio.sleep(settings.retry_max_s)


def _carried(config: EdgeConfig) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(stream for stream in carried_streams(link, config) if stream not in STREAMS_THAT_STAY)
        for name, link in config.links.items()
    }


def offered(flow: Flow, stream: str) -> OfferedStream:
    """Return the declaration of a stream to a hub."""
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
            beat_timeout=int(link.beat_timeout_s * SECOND),
            cluster_id=link.cluster or "",
            report=report,
        ),
    )


def link_tls(link: Link) -> ClientTlsFiles:
    """Return the files of a link with TLS."""
    return ClientTlsFiles(ca_file=link.ca_file, certificate=link.certificate, key=link.key)


# Links as a part of the node.


class LinksPart(Part):
    """The node's links as a part that can be reconfigured."""

    name = "links"

    def __init__(self, links: Links) -> None:
        """Wrap these links."""
        self._links = links

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the links of ``now``.

        Raises:
            ValueError: as ``Links.adopt``.
        """
        self._links.adopt(now)
        return lambda: self._links.adopt(before)

    @property
    def statuses(self) -> Sequence[LinkStatus]:
        """Return the status of each link."""
        return self._links.statuses

    async def close(self) -> None:
        """Send the last words, and end the links."""
        await self._links.close()

    def of_all(self) -> dict[str, Any]:
        """Return how each link is, that to the node's peer among them."""
        peer = [] if self._links.peer is None else [self._links.peer]
        return {link.name: _facts_of(link) for link in [*self.statuses, *peer]}

    def facts(self) -> Mapping[str, Any]:
        """Return the sections of the status."""
        return {
            "links": {link.name: _facts_of(link) for link in self.statuses},
            "conflicts": dict(self._links.conflicts.reasons),
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for link in self.statuses:
            yield Sample("weft_edge_link_connected", link.state is LinkState.CONNECTED, (link.name,))
            yield Sample("weft_edge_link_alarm", bool(link.alarm), (link.name,))
            yield Sample("weft_edge_link_pending_records", link.pending_records, (link.name,))
            yield Sample("weft_edge_link_pending_seconds", link.pending_seconds, (link.name,))
            yield Sample("weft_edge_link_sent_bytes_total", link.bytes_sent, (link.name,))
            yield Sample("weft_edge_link_paused", link.is_paused, (link.name,))
            yield Sample("weft_edge_link_held", bool(link.hold), (link.name,))
            yield Sample("weft_edge_link_canary_overdue", link.canary is CanaryState.OVERDUE, (link.name,))
            for name, value in _estimates(link):
                if value is not None:
                    yield Sample(name, value, (link.name,))
            yield Sample("weft_edge_link_attempts_failed", link.attempts_failed, (link.name,))
            if link.certificate_expires is not None:
                end = seconds(link.certificate_expires) or 0
                yield Sample("weft_edge_link_certificate_expires_timestamp_seconds", end, (link.name,))
        yield Sample("weft_edge_conflict", bool(self._links.conflicts.reasons))


def _estimates(link: LinkStatus) -> Iterator[tuple[str, float | None]]:
    yield "weft_edge_link_pending_bytes", link.pending_bytes
    yield "weft_edge_link_drain_seconds", link.drain_seconds
    yield "weft_edge_link_delivery_seconds", link.delivery_seconds
    yield "weft_edge_link_ping_seconds", link.ping_seconds
    yield "weft_edge_link_canary_seconds", link.canary_seconds
    yield "weft_edge_link_canary_timestamp_seconds", seconds(link.canary_time)
    yield "weft_edge_link_budget_bytes", link.budget_bytes
    yield "weft_edge_link_budget_used_bytes", link.budget_used


def _facts_of(link: LinkStatus) -> dict[str, Any]:
    return {
        "state": str(link.state),
        "url": link.url,
        "cluster_id": link.cluster_id,
        "connected_since": seconds(link.connected_since),
        "alarm": link.alarm,
        "pending_records": link.pending_records,
        "pending_seconds": link.pending_seconds,
        "pending_bytes": link.pending_bytes,
        "drain_seconds": link.drain_seconds,
        "delivery_seconds": link.delivery_seconds,
        "ping_seconds": link.ping_seconds,
        "canary": str(link.canary),
        "canary_seconds": link.canary_seconds,
        "canary_time": seconds(link.canary_time),
        "canary_alarm": link.canary_alarm,
        "pull": link.pull or None,
        "paused": link.is_paused,
        "hold": link.hold,
        "budget_bytes": link.budget_bytes,
        "budget_used_bytes": link.budget_used,
        "budget_ends": seconds(link.budget_ends),
        "unacked_bytes": link.unacked_bytes,
        "bytes_sent": link.bytes_sent,
        "records_acked": link.records_acked,
        "attempts_failed": link.attempts_failed,
        "certificate_expires": seconds(link.certificate_expires),
        "last_ack": seconds(link.last_ack_time),
        "last_error": link.last_error,
        "last_error_time": seconds(link.last_error_time),
        "next_try": seconds(link.next_try),
        "clock_offset_seconds": seconds(link.clock_offset_ns),
    }
