"""Retained messages: the last message of each topic, in memory for subscribers and in SQLite for restarts."""

from __future__ import annotations

import gc
import heapq
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from weft.bounds import LOCAL, Bound, Owner, OwnerKind, Quota, Refusals
from weft.config.limits import EdgeLimits
from weft.edge_node.sessions import database as columns
from weft.edge_node.sessions.database import Database, Done
from weft.edge_node.sessions.records import StateCounters, pack_properties, unpack_properties
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties, Publish

# Search of topics by filter: a tree of topic levels (MQTT 5.0 section 4.7).


class _TopicNode:
    __slots__ = ("children", "topic")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode] | None = None
        self.topic: bytes | None = None


class TopicTree:
    """A set of valid topics.

    The cost of a search depends on the levels that the filter's wildcards reach, not on the size of the set. No method
    recurses: a topic of thousands of levels cannot exhaust the stack.
    """

    def __init__(self) -> None:
        self._root = _TopicNode()

    def add(self, topic: bytes) -> None:
        """Add a topic, UTF-8."""
        node = self._root
        for level in topic.decode().split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _TopicNode()
            node = child
        node.topic = topic

    def remove(self, topic: bytes) -> None:
        """Remove a topic, which must be in the set, and branches left empty."""
        path: list[tuple[_TopicNode, str]] = []
        node = self._root
        for level in topic.decode().split("/"):
            path.append((node, level))
            assert node.children is not None
            node = node.children[level]
        node.topic = None
        while path and node.topic is None and not node.children:
            node, level = path.pop()
            assert node.children is not None
            del node.children[level]

    def match(self, topic_filter: str) -> list[bytes]:
        """Return the topics that a valid filter matches; topics that begin with ``$`` only if the filter does too."""
        return [topic for topic in self.walk(topic_filter) if topic is not None]

    def walk(self, topic_filter: str) -> Iterator[bytes | None]:
        """Yield the topics that a valid filter matches, in steps of equal cost: a topic, or None for a step without a
        match.

        The tree may change between two steps: a topic added meanwhile may be missing, a removed one may be yielded.
        """
        levels = topic_filter.split("/")
        rest = levels[-1] == "#"  # "sport/#" matches "sport" too
        if rest:
            levels.pop()
        # Depth first: only the siblings along one path wait, not a whole level of the tree.
        waiting: list[tuple[Iterator[_TopicNode], int]] = [(iter((self._root,)), 0)]
        while waiting:
            nodes, depth = waiting[-1]
            node = next(nodes, None)
            if node is None:
                waiting.pop()
                continue
            is_match = depth >= len(levels)
            if node.children and (rest or not is_match):
                waiting.append((_children(node, "+" if is_match else levels[depth], hidden=not depth), depth + 1))
            yield node.topic if is_match else None


def _children(node: _TopicNode, level: str, *, hidden: bool) -> Iterator[_TopicNode]:
    children = node.children or {}
    if level != "+":
        return iter((children[level],) if level in children else ())
    if hidden:
        return iter([child for name, child in children.items() if not name.startswith("$")])  # [MQTT-4.7.2-1]
    return iter(list(children.values()))


MESSAGE_OVERHEAD_BYTES = 850
"""Memory that a retained message takes beside its topic, payload and properties, measured: objects and tree."""
PROPERTY_OVERHEAD_BYTES = 400
_NS = 1_000_000_000
NOBODY = Owner(OwnerKind.ADDRESS, LOCAL)
"""Owner of messages that this machine publishes."""


class RetainedMessage(msgspec.Struct, frozen=True, gc=False):
    """The last message of a topic that was published with retain (MQTT 5.0 section 3.3.1.3)."""

    topic: bytes
    payload: bytes
    qos: int
    properties: Properties
    """Properties as published, with the message expiry interval, which counts from ``stored_ns``."""
    stored_ns: int
    owner: Owner = NOBODY
    """Owner that published it; its share is charged."""
    change: int = 0
    """Number of the change that set it (``RetainedMessages.changes``); 0 for messages of an earlier run."""

    @property
    def deadline_ns(self) -> int | None:
        """Return the time at which the message expires [MQTT-3.3.2-5], ns since 1970; None for never."""
        interval = self.properties.message_expiry_interval
        return None if interval is None else self.stored_ns + interval * _NS

    @property
    def cost_bytes(self) -> int:
        """Return the approximate memory of the message."""
        size = len(self.topic) + len(self.payload) + MESSAGE_OVERHEAD_BYTES
        if self.properties is not NO_PROPERTIES:
            size += PROPERTY_OVERHEAD_BYTES + len(pack_properties(self.properties) or b"")
        return size


def create_tables(database: sqlite3.Connection) -> None:
    """Create the table of retained messages."""
    database.execute(
        "CREATE TABLE IF NOT EXISTS retained (topic TEXT PRIMARY KEY NOT NULL, payload BLOB NOT NULL, qos INTEGER, "
        "properties BLOB, stored_ns INTEGER, owner TEXT)"
    )


class RetainedMessages:
    """All retained messages. Owner's thread only.

    A change is seen by ``match`` at once and becomes durable behind it; changes of one topic that wait for the same
    transaction cost one row. When the disk is full, callbacks of ``on_durable`` get the error, and the changes are
    tried again with the next one or ``flush``.
    """

    def __init__(
        self,
        database: Database,
        limits: EdgeLimits,
        counters: StateCounters,
        refusals: Refusals,
        wall_clock: Callable[[], int],
    ) -> None:
        """Load the messages of the database; blocks.

        Args:
            refusals: counts messages not retained because of a limit.
            wall_clock: ns since 1970.

        Raises:
            sqlite3.Error, DatabaseFailed: the table cannot be read.
        """
        self._database = database
        self._counters = counters
        self._wall_clock = wall_clock
        self._messages: dict[bytes, RetainedMessage] = {}
        share, what = limits.user_share, "retained messages"
        self._count = Bound(Quota.of("limits.retained", limits.retained, share, what), refusals)
        self._bytes = Bound(Quota.of("limits.retained_size", limits.retained_bytes, share, what), refusals)
        self._victims: tuple[Owner, list[bytes]] = (NOBODY, [])
        """Owner that makes room, and its topics; the oldest one is last."""
        self._tree = TopicTree()
        self._deadlines: list[tuple[int, bytes]] = []
        self._waiting: list[tuple[int, Done]] = []
        """(changes when it was registered, callback), ascending."""
        self._changes = 0
        self._durable = 0
        """Changes up to this one are in the database."""
        self._lock = threading.Lock()
        self._unsaved: dict[bytes, RetainedMessage | None] = {}
        """Changes for the next transaction, guarded by the lock. None deletes."""
        self._taken: dict[bytes, RetainedMessage | None] = {}
        self._taken_changes = 0
        self._requested = False
        rows: list[tuple[str, bytes, int, bytes | None, int, str]] = []

        def load(database: sqlite3.Connection) -> None:
            query = "SELECT topic, payload, qos, properties, stored_ns, owner FROM retained"
            for topic, payload, qos, properties, stored_ns, owner in database.execute(query):
                found = columns.read(database, "retained", topic, payload, properties, owner)
                if found is not None:
                    values: list[Any] = found[1]
                    rows.append((found[0], values[0], qos, values[1], stored_ns, values[2]))

        database.run(load)
        # None of these objects is garbage: a collection would take as long as the loading.
        collecting = gc.isenabled()
        gc.disable()
        owners: dict[str, Owner] = {}
        for topic, payload, qos, properties, stored_ns, name in rows:
            owner = owners.setdefault(name, _owner(name))
            self._keep(RetainedMessage(topic.encode(), payload, qos, unpack_properties(properties), stored_ns, owner))
        if collecting:
            gc.enable()
        self._expire(wall_clock())

    def __len__(self) -> int:
        return len(self._messages)

    def match(self, topic_filter: str) -> list[RetainedMessage]:
        """Return the messages of a filter (without ``$share``) that have not expired, in no particular order."""
        return [found for found in self.walk(topic_filter) if found is not None]

    @property
    def changes(self) -> int:
        """Return the number of changes in this run."""
        return self._changes

    def walk(self, topic_filter: str) -> Iterator[RetainedMessage | None]:
        """Yield the messages of a filter in small steps: the present one, or None for a step without a match.

        Messages may change between two steps. Filters that begin with a wildcard do not match topics that begin with
        ``$`` [MQTT-4.7.2-1].
        """
        if "+" in topic_filter or "#" in topic_filter:
            for topic in self._tree.walk(topic_filter):
                yield None if topic is None else self.get(topic)
        else:
            yield self.get(topic_filter.encode())

    def get(self, topic: bytes) -> RetainedMessage | None:
        """Return a topic's last message; None when there is none, or it has expired."""
        self._expire(self._wall_clock())
        return self._messages.get(topic)

    def set(  # noqa: PLR0917
        self, topic: bytes, payload: bytes, qos: int, properties: Properties, now: int, owner: Owner = NOBODY
    ) -> bool:
        """Keep a message in place of its topic's last [MQTT-3.3.1-5]; False when a limit forbids it.

        When the limit is met, nothing changes: the topic keeps its message. Where the limit of all messages is met, an
        owner that has more than this one loses its oldest topics.
        """
        message = RetainedMessage(topic, payload, qos, properties, now, owner, self._changes + 1)
        self._expire(now)
        if not self._make_room(message):
            self._counters.retained_refused += 1
            return False
        self._keep(message)
        self._change(topic, message)
        return True

    def retain(self, packet: Publish, now: int, owner: Owner = NOBODY) -> bool:
        """Keep a message as its topic's last, or delete the last one if this is empty; False when a limit forbids
        it."""
        if not packet.payload:
            self.clear(packet.topic)
            return True
        properties = packet.properties
        if properties.topic_alias is not None:
            properties = msgspec.structs.replace(properties, topic_alias=None)
        return self.set(packet.topic, packet.payload, packet.qos, properties, now, owner)

    def clear(self, topic: bytes) -> None:
        """Delete a topic's message; do nothing when there is none [MQTT-3.3.1-6]."""
        if self._drop(topic):
            self._change(topic, None)

    def on_durable(self, callback: Done) -> None:
        """Call back when every change so far is durable; at once, within the call, when all of them are."""
        if self._durable == self._changes:
            callback(None)
            return
        self._waiting.append((self._changes, callback))
        self.flush()

    def flush(self) -> None:
        """Write the changes that are not durable, failed ones included, unless a write is under way."""
        if not self._requested and self._durable != self._changes:
            self._requested = True
            self._database.submit(self._save, self._saved)

    # --- memory

    def _keep(self, message: RetainedMessage) -> None:
        before = self._messages.get(message.topic)
        if before is None:
            self._tree.add(message.topic)
        else:
            self._free(before)
        self._messages[message.topic] = message
        self._count.hold(message.owner)
        self._bytes.hold(message.owner, message.cost_bytes)
        self._counters.retained, self._counters.retained_bytes = self._count.used, self._bytes.used
        deadline = message.deadline_ns
        if deadline is not None:
            if len(self._deadlines) > 2 * len(self._messages) + 64:  # most belong to replaced messages
                self._deadlines = [
                    (each.deadline_ns, topic) for topic, each in self._messages.items() if each.deadline_ns is not None
                ]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (deadline, message.topic))

    def _drop(self, topic: bytes) -> bool:
        message = self._messages.pop(topic, None)
        if message is None:
            return False
        self._tree.remove(topic)
        self._free(message)
        return True

    def _free(self, message: RetainedMessage) -> None:
        self._count.free(message.owner)
        self._bytes.free(message.owner, message.cost_bytes)
        self._counters.retained, self._counters.retained_bytes = self._count.used, self._bytes.used

    # --- shares

    def _make_room(self, message: RetainedMessage) -> bool:
        """Return whether a message fits in place of its topic's last."""
        owner, before = message.owner, self._messages.get(message.topic)
        freed = (0, 0) if before is None else (1, before.cost_bytes)
        is_own = before is not None and before.owner == owner
        for bound, units, replaced in zip((self._count, self._bytes), (1, message.cost_bytes), freed, strict=True):
            own = units - replaced if is_own else units
            has_room = own <= 0 or not bound.is_own_share_full(owner, own)
            while has_room and units > replaced and bound.used + units - replaced > bound.total:
                has_room = self._evict(bound, owner, message.topic)
            if not has_room:
                bound.refuse(owner, own)
                return False
        return True

    def _evict(self, bound: Bound, owner: Owner, kept: bytes) -> bool:
        """Delete a message of an owner that has more than this one; return whether there is such an owner.

        Args:
            kept: topic whose message must stay.
        """
        heavier = bound.heavier(owner)
        if heavier is None or heavier == owner:
            return False
        if self._victims[0] != heavier or not self._victims[1]:
            topics = [topic for topic, each in self._messages.items() if each.owner == heavier]
            self._victims = (heavier, topics[::-1])
        topics = self._victims[1]
        while topics:
            topic = topics.pop()
            message = self._messages.get(topic)
            if message is not None and message.owner == heavier and topic != kept:
                self._counters.retained_evicted += 1
                self.clear(topic)
                return True
        return False

    def _expire(self, now: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, topic = heapq.heappop(self._deadlines)
            message = self._messages.get(topic)
            if message is not None and message.deadline_ns == deadline:
                self._counters.retained_expired += 1
                self.clear(topic)

    # --- the database

    def _change(self, topic: bytes, message: RetainedMessage | None) -> None:
        with self._lock:
            self._unsaved[topic] = message
            self._changes += 1
        self.flush()

    def _save(self, database: sqlite3.Connection) -> None:
        """Write the changes to the table, on the database's thread."""
        with self._lock:
            self._taken.update(self._unsaved)
            self._taken_changes = self._changes
            self._unsaved = {}
            taken = list(self._taken.items())
        gone = [
            (columns.stored_key(database, "retained", topic.decode()),) for topic, message in taken if message is None
        ]
        kept = [_row(database, message) for _, message in taken if message is not None]
        database.executemany("DELETE FROM retained WHERE topic = ?", gone)
        database.executemany("INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?, ?, ?)", kept)

    def _saved(self, error: BaseException | None) -> None:
        self._requested = False
        with self._lock:
            changes = self._taken_changes
            if error is not None:
                self._unsaved = {**self._taken, **self._unsaved}
            self._taken = {}
        if error is None:
            self._durable = changes
        due = [callback for number, callback in self._waiting if number <= changes]
        self._waiting = self._waiting[len(due) :]
        _settle(due, error)
        if self._waiting or error is None:
            self.flush()


def _settle(callbacks: Iterable[Done], error: BaseException | None) -> None:
    for callback in callbacks:
        callback(error)


def _row(database: sqlite3.Connection, message: RetainedMessage) -> tuple[object, ...]:
    properties, owner = pack_properties(message.properties), message.owner
    topic, name = message.topic.decode(), f"{owner.kind}:{owner.name}"
    key = columns.stored_key(database, "retained", topic)
    payload, sealed, who = (
        columns.stored(database, "retained", topic, each) for each in (message.payload, properties, name)
    )
    return key, payload, message.qos, sealed, message.stored_ns, who


def _owner(name: str) -> Owner:
    kind, _, rest = name.partition(":")
    return Owner(OwnerKind(kind), rest) if kind in set(OwnerKind) else NOBODY
