"""A subscription at an OPC UA server that outlives connections and runs of the node: its numbers and its two files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from asyncua import ua

from weft.config.log_lines import Repeats
from weft.config.sources import OpcuaSource
from weft.edge_node.sources.connection import Memory
from weft.edge_node.sources.opcua_space import Found, Item, Missing, Space, event_filter
from weft.storage.filesystem import FileSystem, write_atomically

FOLDER = "sources"
NAMED_MAX = 100
"""Topics that a gap notice lists; beyond it, a number."""
FILLS_MAX = 1000
"""Gaps that wait to be filled from history."""
_DEADBANDS = {"deadband": ua.DeadbandType.Absolute, "deadband_percent": ua.DeadbandType.Percent}
_LAST_SEQUENCE = 0xFFFF_FFFF


def following(sequence: int) -> int:
    """Return the sequence number after one; 0 does not exist (OPC 10000-4, 7.26)."""
    return 1 if sequence >= _LAST_SEQUENCE else sequence + 1


def preceding(sequence: int) -> int:
    """Return the sequence number before one."""
    return sequence - 1 or _LAST_SEQUENCE


def ahead(sequence: int, of: int) -> int:
    """Return by how many a sequence number is ahead of another; below zero where it is behind."""
    distance = (sequence - of) % _LAST_SEQUENCE
    return distance if distance <= _LAST_SEQUENCE // 2 else distance - _LAST_SEQUENCE


class KeptItem(msgspec.Struct, frozen=True, array_like=True):
    """An item as the file has it."""

    node: str
    topic: str
    unit: str
    has_history: bool
    monitored: bool
    range: tuple[float, float] | None = None


class KeptSubscription(msgspec.Struct, frozen=True):
    """A subscription that the server may still have, in ``sources/NAME.subscription.json``."""

    url: str
    id: int
    settings: str
    """Digest of the settings that it was made with."""
    namespaces: list[str]
    started: int
    """Start of the server, ns since 1970: another run of it gives the same ids to other subscriptions."""
    items: list[KeptItem]


class Position(msgspec.Struct, frozen=True):
    """Position up to which a subscription is on disk, in ``sources/NAME.position.json``.

    It is written before the server may forget what it covers.
    """

    subscription: int
    acknowledged: int
    through: int
    """Time of the server, ns since 1970, up to which its changes are on disk, or under a gap notice."""


class StateFiles:
    """The two files of one source. Every method blocks on the disk."""

    def __init__(self, filesystem: FileSystem, data_dir: str, name: str) -> None:
        self._filesystem = filesystem
        self._folder = os.path.join(data_dir, FOLDER)
        self._name = name

    def read(self) -> tuple[KeptSubscription | None, Position | None]:
        """Return what is known of the subscription of an earlier run."""
        subscription: KeptSubscription | None = None
        position: Position | None = None
        # Without either of them there is nothing to resume; a damaged one is like a missing one.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            subscription = msgspec.json.decode(self._filesystem.read(self._path("subscription")), type=KeptSubscription)
            position = msgspec.json.decode(self._filesystem.read(self._path("position")), type=Position)
        return subscription, position

    def write(self, what: str, state: KeptSubscription | Position) -> None:
        """Write one of the files.

        Raises:
            OSError: nothing has changed.
        """
        self._filesystem.make_directory(self._folder)
        write_atomically(self._filesystem, self._path(what), msgspec.json.encode(state))

    def _path(self, what: str) -> str:
        return os.path.join(self._folder, f"{self._name}.{what}.json")


@dataclass
class Subscription:
    """A subscription at the server, across connections."""

    id: int
    items: list[Item]
    publishing_s: float
    silence_s: float
    """Silence after which it is given up: twice the interval of keep-alives."""
    margin: int
    """Nanoseconds by which the source time of a change may be before the notification in front of it."""
    namespaces: list[str]
    started: int
    """Start of the server, ns since 1970."""
    taken: int = 0
    """Sequence number of the last notification that was handed to the log."""
    durable: int = 0
    """Sequence number up to which all are on disk, or under a gap notice."""
    through: int = 0
    """PublishTime of the last notification, ns since 1970; 0 before the first."""
    saved: Position | None = None
    """Content of the position file about it; None before it says anything."""
    acks: list[int] = field(default_factory=list)
    """Sequence numbers that the server may forget and does not know of yet."""
    stored: deque[int] = field(default_factory=deque)
    """Those that are on disk and are not in the position file."""
    silent: int = 0
    """Connections in a row on which nothing came."""
    resent: bool = False
    """True while the server sends what an earlier run may have stored."""
    is_written: bool = False
    """True if the file has its items as they are."""
    before: Subscription | None = None
    """The subscription that it replaces, and ``why``, for as long as it is not ``saved``: until then it may lack
    variables or the notice of the gap before it, and is not resumed."""
    why: str = ""
    stale: str = ""
    """Reason why it cannot be resumed; empty if it can."""
    refresh: bool = False
    """True while the server is to send the state of all conditions again: events of theirs may be missing."""
    refreshed_at: float | None = None
    """Time of the last request for that, by the loop's clock."""
    refreshing: set[int] = field(default_factory=set)
    """Handles of nodes whose events are such states at present."""


def digest(settings: OpcuaSource) -> str:
    """Return a digest of the settings that a subscription is made of."""
    parts = (settings.nodes, settings.publishing_s, settings.sampling_s, settings.queue, settings.nodes_max)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def of_earlier_run(
    kept: KeptSubscription, position: Position, settings: OpcuaSource, url: str
) -> tuple[Subscription | None, str]:
    """Return the subscription of an earlier run; None, and why not, where the server cannot have it."""
    if kept.id != position.subscription:
        return None, "the node ended while it made the subscription"
    if kept.settings != digest(settings) or kept.url != url:
        return None, "the settings of the source have changed"
    items = [Item(*msgspec.structs.astuple(each)) for each in kept.items]
    for item in items:
        item.is_first = False
    silence = settings.keep_alive_s * 2
    margin = int(max(settings.publishing_s, settings.sampling_s) * 1e9)
    subscription = Subscription(kept.id, items, settings.publishing_s, silence, margin, kept.namespaces, kept.started)
    subscription.taken = subscription.durable = position.acknowledged
    subscription.through, subscription.saved, subscription.resent = position.through, position, True
    subscription.is_written = True
    return subscription, ""


def kept_of(subscription: Subscription, settings: OpcuaSource, url: str) -> KeptSubscription:
    """Return what the file keeps of a subscription."""
    items = [
        KeptItem(each.node, each.topic, each.unit, each.has_history, each.monitored, each.range)
        for each in subscription.items
    ]
    return KeptSubscription(
        url, subscription.id, digest(settings), subscription.namespaces, subscription.started, items
    )


def parameters_of(settings: OpcuaSource) -> ua.CreateSubscriptionParameters:
    """Return what is asked for in a subscription."""
    keep_alive = max(1, round(settings.keep_alive_s / settings.publishing_s))
    return ua.CreateSubscriptionParameters(
        RequestedPublishingInterval=settings.publishing_s * 1000,
        RequestedLifetimeCount=ua.UInt32(max(3 * keep_alive, round(settings.lifetime_s / settings.publishing_s))),
        RequestedMaxKeepAliveCount=ua.UInt32(keep_alive),
        MaxNotificationsPerPublish=ua.UInt32(1000),
        PublishingEnabled=True,
    )


def made_of(made: ua.CreateSubscriptionResult, settings: OpcuaSource, space: Space) -> Subscription:
    """Return the subscription that a server has made."""
    interval = max(0.001, made.RevisedPublishingInterval / 1000)
    silence = max(1.0, interval * max(1, made.RevisedMaxKeepAliveCount) * 2)
    margin = int(max(interval, settings.sampling_s) * 1e9)
    return Subscription(made.SubscriptionId, [], interval, silence, margin, space.namespaces, space.started)


def request_for(found: Found, handle: int, settings: OpcuaSource) -> ua.MonitoredItemCreateRequest:
    """Return the request to monitor a variable, or the events of a node."""
    own = found.settings
    sampling = settings.sampling_s if own.sampling_s is None else own.sampling_s
    request = ua.MonitoredItemCreateRequest()
    request.ItemToMonitor.NodeId = found.id
    request.ItemToMonitor.AttributeId = ua.AttributeIds.Value
    request.MonitoringMode = ua.MonitoringMode.Reporting
    request.RequestedParameters.ClientHandle = ua.UInt32(handle)
    request.RequestedParameters.SamplingInterval = sampling * 1000
    request.RequestedParameters.QueueSize = ua.UInt32(own.queue or settings.queue)
    request.RequestedParameters.DiscardOldest = True
    if own.events:
        request.ItemToMonitor.AttributeId = ua.AttributeIds.EventNotifier
        request.RequestedParameters.SamplingInterval = 0.0
        request.RequestedParameters.Filter = event_filter()
    for name, kind in _DEADBANDS.items():
        if (size := getattr(own, name)) is not None:
            request.RequestedParameters.Filter = ua.DataChangeFilter(
                Trigger=ua.DataChangeTrigger.StatusValue, DeadbandType=ua.UInt32(kind), DeadbandValue=size
            )
    return request


class Away(NamedTuple):
    """The time since which the server is not connected."""

    since: int
    why: str


class Fill(NamedTuple):
    """A gap that history may fill: source times between two moments, exclusive."""

    items: tuple[Item, ...]
    since: int
    until: int


class OpcuaMemory(Memory):
    """State of an OPC UA source across connections, while the node runs."""

    def __init__(self) -> None:
        super().__init__()
        self.subscription: Subscription | None = None
        self.missing: list[Missing] = []
        self.is_resolved = False
        """True once it is known which of the configured nodes the server lacks."""
        self.lines = Repeats()
        self.away: Away | None = None
        self.fills: deque[Fill] = deque(maxlen=FILLS_MAX)
        self.fill_tries = 0
        """Tries to read the first of them."""
        self.unreadable = (0, "")
        """Sequence number of a notification that cannot be read, and why."""


def items_of(message: ua.NotificationMessage) -> Iterator[tuple[int, ua.DataValue | Sequence[ua.Variant]]]:
    """Yield the client handle of each change or event in a notification, and the value or the fields."""
    for data in message.NotificationData or []:
        if isinstance(data, ua.DataChangeNotification):
            for each in data.MonitoredItems:
                yield each.ClientHandle, each.Value
        elif isinstance(data, ua.EventNotificationList):
            for event in data.Events:
                yield event.ClientHandle, event.EventFields


def status_change(message: ua.NotificationMessage) -> ua.StatusCode | None:
    """Return the status with which a server ends a subscription; None in other notifications."""
    for data in message.NotificationData or []:
        if isinstance(data, ua.StatusChangeNotification):
            return data.Status
    return None
