"""Where all listeners end: from topics and payloads to records of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_node.back_pressure import BackPressure, PendingLog
from edge_node.counters import Counters
from edge_node.router import Router
from edge_node.subscriptions import Subscriptions
from protocols.batch import Flag, HeaderPairs
from protocols.mqtt.publish_run import PublishRun

TOPICS_MAX = 100_000
"""Topics whose streams are remembered; when there are more, all are forgotten and found anew."""
TOPIC_BYTES_REMEMBERED_MAX = 512
"""Longer topics are looked up every time, so that the memory of topics stays below 100 MB whatever clients send."""


class Log(PendingLog, Protocol):
    """What ingest needs of the segment log. Every call belongs to the event loop's thread."""

    def append(  # noqa: PLR0917
        self,
        stream: int,
        time: int,
        keys: list[bytes],
        payloads: list[bytes],
        headers: dict[int, HeaderPairs] | None = None,
        flags: dict[int, int] | None = None,
    ) -> int:
        """Take a run of records, which is not durable yet; the lists are the log's from then on.

        Raises:
            LogFull, LogFailed: nothing of the run was taken.
        """
        ...


class Target:
    """Where the records of a topic go. Compared by identity: equal targets are one object."""

    __slots__ = ("live", "streams")

    def __init__(self, streams: tuple[int, ...], live: bool) -> None:
        self.streams = streams
        """Empty for a topic that belongs to no stream: nothing was promised about it, so it is not stored, only
        counted and delivered live. It is acknowledged all the same, or the device would send it for ever."""
        self.live = live
        """Whether somebody is subscribed to the topic now."""


class Ingest:
    """Appends what listeners receive, and fans it out to local subscribers.

    Records get the time at which their read was handled, in nanoseconds since 1970 by ``wall_clock``. Belongs to the
    event loop's thread.
    """

    def __init__(
        self,
        log: Log,
        router: Router,
        subscriptions: Subscriptions,
        wall_clock: Callable[[], int],
        counters: Counters,
        *,
        pending_bytes_max: int,
    ) -> None:
        """Join log, routes and subscriptions.

        Args:
            wall_clock: nanoseconds since 1970.
            pending_bytes_max: bytes that may wait for the disk before publishers are held.
        """
        self._log = log
        self._router = router
        self._subscriptions = subscriptions
        self._wall_clock = wall_clock
        self._counters = counters
        self.back_pressure = BackPressure(log, pending_bytes_max)
        self.plain: dict[bytes, Target] = {}
        """The topics known to need nothing but storing; others are to be asked for with ``target``."""
        self._targets: dict[bytes, Target] = {}
        self._interned: dict[tuple[tuple[int, ...], bool], Target] = {}
        subscriptions.watch(self._forget)

    def target(self, topic: bytes) -> Target:
        """Where a topic's records go. The topic must be valid: checked, decoded UTF-8."""
        found = self._targets.get(topic)
        if found is None:
            found = self._resolve(topic)
            if len(topic) <= TOPIC_BYTES_REMEMBERED_MAX:
                self._remember(topic, found)
        return found

    def store(self, run: PublishRun[Target]) -> None:
        """Append the records of one read, in order of receipt within each stream. Not durable yet: see ``on_durable``.

        Raises:
            LogFull, LogFailed: not everything was appended; none of the run may be acknowledged.
        """
        now = self._wall_clock()
        counters = self._counters
        for target, records in run.groups.items():
            counters.publishes_received += len(records.keys)
            counters.publish_bytes_received += sum(map(len, records.payloads))
            if not target.streams:
                counters.publishes_unrouted += len(records.keys)
                continue
            keys, payloads, flags = records.keys, records.payloads, records.flags or None
            for stream in target.streams[1:]:  # the log keeps the lists it gets, so every other stream needs its own
                self._log.append(stream, now, keys.copy(), payloads.copy(), None, flags and flags.copy())
            self._log.append(target.streams[0], now, keys, payloads, None, flags)
        self.back_pressure.appended()

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""
        self._log.on_durable(callback)

    def publish(self, topic: bytes, payload: bytes, qos: int, *, retain: bool) -> None:
        """Store one message of the node's own accord, such as a will, and deliver it.

        Raises:
            LogFull, LogFailed: not stored, and not delivered.
        """
        run: PublishRun[Target] = PublishRun()
        run.add(self.target(topic), topic, payload, Flag.RETAINED if retain else 0)
        self.store(run)
        self.deliver(topic, payload, qos)

    def deliver(self, topic: bytes, payload: bytes, qos: int) -> None:
        """Fan a message out to who is subscribed now."""
        self._subscriptions.publish(topic, payload, qos)

    def _resolve(self, topic: bytes) -> Target:
        key = (self._router.streams(topic.decode()), bool(self._subscriptions.subscribers(topic)))
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = Target(*key)
        return found

    def _remember(self, topic: bytes, target: Target) -> None:
        if len(self._targets) >= TOPICS_MAX:
            self._forget()
        self._targets[topic] = target
        if not target.live:
            self.plain[topic] = target

    def _forget(self) -> None:
        self._targets.clear()
        self.plain.clear()
