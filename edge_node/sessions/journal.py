"""Journal of changes in persistent sessions: it is in the log, and shares the group commit of the messages."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from weft.bounds import Quota, Shares
from weft.edge_node.access.identity import user_of_session
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.records import (
    Completed,
    Ended,
    Entry,
    Lost,
    Positions,
    Published,
    Received,
    Released,
    Run,
    Sending,
    Sent,
    SessionRecord,
    SharedEnded,
    SharedMoved,
    SharedRecord,
    Snapshot,
    StateCounters,
    StateSettings,
    Subscribed,
    Taken,
    Unsubscribed,
    WillPublished,
    encode_entry,
    ids_of_acks,
    pack_ids,
    pack_record,
)
from weft.edge_node.subscriptions.message import LogRecord, Outbox
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Subscription
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog

# The last publishes of one session, by packet identifier, in a few bytes each.


class Found(NamedTuple):
    """Place of the last publish with a packet identifier, if it is in the log."""

    runs: tuple[Run, ...]
    """The records of its read; empty when its publishes must not be recognised."""
    qos: int
    rank: int
    """Number of the read's ``publishes`` at this QoS that came before it."""
    publishes: int


_Read = tuple[int, bytes, tuple[Run, ...]]
"""(QoS, packet identifiers, runs)"""


class RecentPublishes:
    """Reads of one session, oldest first: packet identifiers (two bytes each) and the runs of their records.

    A reused packet identifier hides its earlier publish.
    """

    __slots__ = ("_reads", "count")

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()
        self.count = 0
        """Number of packet identifiers, repeated ones included."""

    def add(self, qos: int, packet_ids: bytes, runs: tuple[Run, ...], window: int) -> None:
        """Remember a read of publishes, and keep older reads within the last ``window`` publishes.

        Args:
            runs: empty when these must not be recognised, and only hide older publishes with their identifiers.
        """
        self._reads.append((qos, packet_ids, runs))
        self.count += len(packet_ids) // 2
        # By reads and not by publishes: a read of a hundred messages is one entry in memory, of two bytes each.
        while len(self._reads) > 1 and self.count - len(self._reads[0][1]) // 2 >= window:
            self.count -= len(self._reads.popleft()[1]) // 2

    def find(self, packet_id: int) -> Found | None:
        """Return the last publish with a packet identifier; None when none is remembered."""
        wanted = packet_id.to_bytes(2, "big")
        # The last use of an identifier hides earlier ones: a publish without DUP began a new exchange.
        for qos, packet_ids, runs in reversed(self._reads):
            at = packet_ids.rfind(wanted)
            # Two neighbouring identifiers may contain the wanted bytes across their border.
            while at > 0 and at % 2:
                at = packet_ids.rfind(wanted, 0, at + 1)
            if at >= 0:
                return Found(runs, qos, at // 2, len(packet_ids) // 2)
        return None

    def clip(self, ends: Mapping[int, int]) -> None:
        """Forget publishes beyond the ends that a crash left the streams with.

        They are not in the log, and other records will get their sequence numbers.
        """
        self._reads = deque((qos, packet_ids, clip_runs(runs, ends)) for qos, packet_ids, runs in self._reads)

    def pack(self) -> bytes:
        """Return the publishes in the form that the database stores."""
        return msgspec.msgpack.encode(list(self._reads))

    @classmethod
    def unpack(cls, data: bytes) -> RecentPublishes:
        """Return the publishes that ``pack`` wrote.

        Raises:
            msgspec.DecodeError, msgspec.ValidationError: the data has another form.
        """
        recent = cls()
        recent._reads = deque(_DECODER.decode(data))
        recent.count = sum(len(packet_ids) // 2 for _, packet_ids, _ in recent._reads)
        return recent


_DECODER = msgspec.msgpack.Decoder(list[_Read])


def clip_runs(runs: tuple[Run, ...], ends: Mapping[int, int]) -> tuple[Run, ...]:
    """Return the part of the runs below the ends of their streams. A run keeps its place, if only with a count of 0."""
    return tuple((stream, first, max(0, min(count, ends.get(stream, 0) - first))) for stream, first, count in runs)


# Publishes that a device sends again because it did not see their acknowledgement, recognised from the log.
#
# A publish with DUP of a persistent session is *the same* as an earlier one when client identifier, packet
# identifier, QoS, topic and payload are those of the last publish of the session that used the packet identifier, and
# that one's record is in the log. A publish without DUP is always new, and hides the earlier publish with its packet
# identifier. This holds across a restart of the node and across SIGKILL: a publish without a journal entry is not in
# the log either.
#
# The node cannot know whether a client whose PUBACK did arrive used the packet identifier once more for a message of
# the same topic and payload, whose first transmission never came, and sends that again with DUP. A client that always
# uses the same few identifiers for messages that are all alike can thus lose one under ``resent: suppress``; under
# ``flag``, the default, it is stored and marked. Publishes further back than ``resent_window`` are not recognised: a
# client should not leave more than that unacknowledged. Within one read that went to several streams the order of the
# identifiers is not kept; there, any record of the same read with the same topic and payload counts.
#
# A QoS 2 publish is recognised only where a power cut kept its record and not the whole of its commit, so that it was
# neither acknowledged nor counted as received: there, too, it must not be stored twice.

_QOS = Flag.PUBLISHED_QOS0 | Flag.PUBLISHED_QOS2
_QOS_FLAGS = {1: 0, 2: int(Flag.PUBLISHED_QOS2)}
_FETCH_RECORDS = 1_000


class Resent:
    """The last publishes of each persistent session. Event loop's thread only."""

    def __init__(
        self,
        log: SegmentLog,
        backlog: Backlog,
        known: Mapping[str, RecentPublishes],
        settings: StateSettings,
        counters: StateCounters,
    ) -> None:
        """Start with the publishes that recovery found.

        Args:
            known: client identifier -> publishes.
        """
        self._log = log
        self._backlog = backlog
        self._settings = settings
        self._counters = counters
        self._sessions: OrderedDict[str, RecentPublishes] = OrderedDict()
        """In the order of the last publish, oldest first."""
        quota = Quota.of("state.resent_total", settings.state.resent_total, settings.limits.user_share, "publishes")
        self._shares: Shares[str] = Shares(quota.total, quota.share)
        self._of_user: dict[str, dict[str, None]] = {}
        """User -> its sessions, in the order of the last publish: a user beyond its share loses the oldest."""
        for client_id, recent in known.items():
            if recent.count:
                self._keep(client_id, recent)
                self._note(user_of_session(client_id), recent.count)

    def published(self, client_id: str, qos: int, packet_ids: bytes, runs: tuple[Run, ...]) -> None:
        """Remember a read of publishes: at QoS 1, stored as ``runs``; at QoS 2, without runs, as identifiers in use."""
        recent = self._sessions.get(client_id) or RecentPublishes()
        user = self._keep(client_id, recent)
        before = recent.count
        recent.add(qos, packet_ids, runs, self._settings.state.resent_window)
        self._note(user, recent.count - before)

    def forget(self, client_id: str) -> None:
        """Forget the publishes of a session that has ended: its packet identifiers are free again."""
        if client_id in self._sessions:
            self._drop(client_id)

    async def recognise(self, client_id: str, packet_id: int, topic: bytes, payload: bytes) -> bool:
        """Return whether this publish, received with DUP, is in the log already. See the module's text.

        Reads the log, mostly from memory; waits for the earlier attempt to be durable if it is not yet.

        Raises:
            OSError, LogFailed: the log cannot be read, or has failed.
        """
        recent = self._sessions.get(client_id)
        found = recent.find(packet_id) if recent is not None else None
        if found is None or not found.runs:
            return False
        # The first copy may be waiting for the disk. Called "the same" before that, it could be lost and the second
        # copy dropped.
        if any(first + count > self._log.durable_end(stream) for stream, first, count in found.runs):
            await self._log.durable()
        for run in found.runs:
            if await self._holds(run, found, topic, payload):
                self._counters.resent_recognised += 1
                return True
        return False

    def suppress(self, streams: frozenset[int]) -> None:
        """Set the streams with ``resent: suppress``, in place of all earlier ones."""
        self._settings = dataclasses.replace(self._settings, suppressed=streams)

    def suppresses(self, streams: Sequence[int]) -> bool:
        """Return whether all streams have ``resent: suppress``: the publish is acknowledged and not stored again."""
        return bool(streams) and self._settings.suppressed.issuperset(streams)

    async def _holds(self, run: Run, found: Found, topic: bytes, payload: bytes) -> bool:
        stream, first, count = run
        if count == found.publishes and _is(
            await self._record(stream, first + found.rank), found.qos, topic, payload
        ):  # mostly the read had nothing else, and the place is known
            return True
        rank, seen, at_rank = 0, False, False
        for start in range(first, first + count, _FETCH_RECORDS):
            seqs = range(start, min(start + _FETCH_RECORDS, first + count))
            for record in (await self._backlog.fetch(stream, seqs)).values():
                if record.flags & _QOS != _QOS_FLAGS[found.qos]:
                    continue
                same = _is(record, found.qos, topic, payload)
                seen |= same
                at_rank |= same and rank == found.rank
                rank += 1
        # If records of the read are gone, their places say nothing any more, and any equal one counts.
        return at_rank if rank == found.publishes else seen

    async def _record(self, stream: int, seq: int) -> LogRecord | None:
        return (await self._backlog.fetch(stream, (seq,))).get(seq)

    # --- shares

    def _keep(self, client_id: str, recent: RecentPublishes) -> str:
        """Make a session the most recent publisher; return its user."""
        user = user_of_session(client_id)
        self._sessions[client_id] = recent
        self._sessions.move_to_end(client_id)
        own = self._of_user.setdefault(user, {})
        own.pop(client_id, None)
        own[client_id] = None
        return user

    def _note(self, user: str, more: int) -> None:
        """Count publishes, and forget those of the sessions that published longest ago: first of this user."""
        shares = self._shares
        if more < 0:
            shares.free(user, -more)
        else:
            shares.hold(user, more)
        # A user over its share forgets its own publishes first; the total is a bound for all.
        while user and shares.is_own_share_full(user, 0) and len(self._of_user[user]) > 1:
            self._forget_oldest(next(iter(self._of_user[user])))
        while shares.used > shares.total and len(self._sessions) > 1:
            self._forget_oldest(next(iter(self._sessions)))
        self._counters.resent_remembered = shares.used

    def _forget_oldest(self, client_id: str) -> None:
        self._counters.resent_forgotten += self._sessions[client_id].count
        self._drop(client_id)

    def _drop(self, client_id: str) -> None:
        user = user_of_session(client_id)
        self._shares.free(user, self._sessions.pop(client_id).count)
        self._counters.resent_remembered = self._shares.used
        own = self._of_user[user]
        del own[client_id]
        if not own:
            del self._of_user[user]


def _is(record: LogRecord | None, qos: int, topic: bytes, payload: bytes) -> bool:
    return (
        record is not None
        and record.flags & _QOS == _QOS_FLAGS[qos]
        and record.topic == topic
        and record.payload == payload
    )


log = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES = 24
"""Bytes that a record of the log takes beside key and payload."""
RESERVE_SHARE = 64
"""Divisor of the log's budget: the maximum share kept free for a read, so that a small log remains usable."""


_NOTHING: Mapping[int, int] = MappingProxyType({})


class SessionJournal:
    """Every change of the persistent sessions, in the log. Event loop's thread only.

    **Exactly once.** The publishes of a read and their journal entries go into one commit: append and journal them
    within ``together``. A crash leaves a beginning of that commit; the journal's entries are first in it, and recovery
    reverts those about lost records. So after a crash at any instant a QoS 2 packet identifier is known as received if
    and only if its record is in the log.

    A change is durable once ``log.on_durable``, registered after it, calls back: PUBREC, PUBCOMP, PUBREL and QoS 2
    PUBLISH wait for that.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        stream: int,
        sessions: Sequence[SessionRecord],
        shared: Sequence[SharedRecord],
        resent: Resent,
        settings: StateSettings,
        counters: StateCounters,
        wall_clock: Callable[[], int],
    ) -> None:
        """Continue after recovery.

        Args:
            stream: number of the journal's stream.
            sessions: sessions that recovery found.
            shared: the same for shared subscriptions.
            wall_clock: ns since 1970.
        """
        self._log = log
        self._stream = stream
        self._sessions = sessions
        self._shared = shared
        self._resent = resent
        self._settings = settings
        self._counters = counters
        self._wall_clock = wall_clock
        self._reserve_bytes = min(settings.reserve_bytes, log.stats().budget_bytes // RESERVE_SHARE)
        self._gathered: list[tuple[str, Mapping[int, Sent]]] = []
        """Deliveries that ``flush`` will journal."""
        self.bytes_noted = 0
        """Bytes of all entries since the start."""
        # First in each commit: a crash that leaves only its beginning must not leave a message without the session that
        # waits for it.
        log.lead(stream)

    def recover(self) -> Sequence[SessionRecord]:
        """Return the sessions of the last run. Call it once, before any change."""
        sessions, self._sessions = self._sessions, ()
        return sessions

    def recover_shared(self) -> Sequence[SharedRecord]:
        """Return the shared subscriptions of the last run. Call it once, before any change."""
        shared, self._shared = self._shared, ()
        return shared

    def together(self) -> AbstractContextManager[None]:
        """Return a context for records and their changes: the log takes both or neither. Callers must not wait in it.

        Within another such context, the outer one applies and this one adds nothing.

        Raises:
            LogFull, LogFailed: at the end or on entering; nothing was appended. Within it neither is raised as long as
                the read has less than ``reserve_bytes``.
        """
        if self._log.appended_together() is not None:
            return nullcontext()
        self.flush()  # its bytes are not part of the read
        self._check_room(self._reserve_bytes)
        return self._log.together(self._reserve_bytes)

    # --- changes; each raises LogFull and LogFailed, and then nothing was journaled

    def opened(self, record: SessionRecord) -> None:
        """Journal that a session began, or its client came back (perhaps with another version, expiry or will)."""
        self._note(record.client_id, Snapshot(pack_record(record)))

    def closed(self, record: SessionRecord) -> None:
        """Journal that the client has gone, with the whole present session, QoS 1 deliveries in flight included."""
        self._note(record.client_id, Snapshot(pack_record(record)))

    def ended(self, client_id: str) -> None:
        """Journal that the session has ended."""
        self._note(client_id, Ended())
        self._resent.forget(client_id)

    def lost(self, client_id: str, at: int) -> None:
        """Journal that the node has started, and that the session's connection ended with the last run."""
        self._note(client_id, Lost(at))

    def will_published(self, client_id: str) -> None:
        """Journal that the will is in the log, or must not be published. Call it in ``together``, with its records."""
        self._note(client_id, WillPublished(self._runs(())))

    def subscribed(
        self, client_id: str, subscription: Subscription, identifier: int | None, began: Mapping[int, int] = _NOTHING
    ) -> None:
        """Journal that a subscription was added or changed.

        Args:
            began: stream -> the first seq that belongs to the subscription.
        """
        self._note(
            client_id,
            Subscribed(
                subscription.filter,
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                subscription.retain_handling,
                identifier,
                {stream: seq for stream, seq in began.items() if seq},
            ),
        )

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Journal that a subscription was removed."""
        self._note(client_id, Unsubscribed(topic_filter))

    def received(self, client_id: str, packet_ids: Sequence[int], runs: Sequence[Run] = ()) -> None:
        """Journal that QoS 2 publishes of the client were stored.

        Args:
            runs: their records; within ``together`` the log supplies them.
        """
        ids = pack_ids(packet_ids)
        self._note(client_id, Received(ids, self._runs(runs)))
        self._resent.published(client_id, 2, ids, ())

    def released(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """Journal that PUBREL came for these packet identifiers, or that they are forgotten."""
        self._note(client_id, Released(pack_ids(packet_ids)))

    def sent(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        """Journal that QoS 2 deliveries are about to be sent."""
        self._note(client_id, Sending(dict(deliveries)))

    def sending(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        """Journal QoS 1 deliveries with ``flush``, which is called in this step, or with the next change."""
        self._gathered.append((client_id, deliveries))

    def flush(self) -> None:
        """Journal the gathered deliveries as one run. Without room for the entry a restart sends them again, as it
        would in any case."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        try:
            self._append(
                [name.encode() for name, _ in gathered],
                [encode_entry(Sending(dict(deliveries))) for _, deliveries in gathered],
            )
        except (LogFull, LogFailed) as error:
            # The deliveries have gone out. After a crash they are sent again without DUP, which QoS 1 allows.
            log.debug("deliveries to %d clients are not in the session journal: %s", len(gathered), error)

    def pubrec(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """Journal that the client has received these QoS 2 deliveries."""
        self._note(client_id, Taken(pack_ids(packet_ids)))

    def completed(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """Journal that these QoS 2 deliveries are complete: they go into ``done`` unless a position has passed them."""
        self._note(client_id, Completed(pack_ids(packet_ids)))

    def positions(self, client_id: str, positions: Mapping[int, int]) -> None:
        """Journal that the streams' positions have moved to these; other streams' positions stay."""
        self._note(client_id, Positions(dict(positions)))

    def published(self, client_id: str, acks: bytes, runs: Sequence[Run] = ()) -> None:
        """Journal that QoS 1 publishes of the client were stored, so that ``Resent`` recognises them.

        Args:
            acks: their PUBACKs, four bytes each (type, 2, packet identifier).
            runs: (stream, first seq, count) of the records of the same read; QoS 0 and 2 ones may be among them. Within
                ``together`` the log supplies them.
        """
        ids, where = ids_of_acks(acks), self._runs(runs)
        self._note(client_id, Published(ids, where))
        self._resent.published(client_id, 1, ids, where)

    def shared_moved(self, name: str, positions: Mapping[int, int], owed: Sequence[tuple[int, int]] | None) -> None:
        """Journal the position of a shared subscription that outlives its members' connections.

        Args:
            name: the filter as clients write it.
            owed: (stream, seq) of messages to deliver again; None when they are as in the last entry.
        """
        self._note(name, SharedMoved(dict(positions), None if owed is None else tuple(owed)))

    def shared_ended(self, name: str) -> None:
        """Journal that a shared subscription has no members any more."""
        self._note(name, SharedEnded())

    def _runs(self, given: Sequence[Run]) -> tuple[Run, ...]:
        appended = self._log.appended_together()
        if appended is None:
            return tuple(given)
        return tuple(run for run in appended if run[0] != self._stream)

    def _note(self, name: str, entry: Entry) -> None:
        # Deliveries before the change, in the order in which they happened: an answer must not be read before what it
        # answers.
        if self._gathered:
            self.flush()
        self._append([name.encode()], [encode_entry(entry)])

    def _append(self, keys: list[bytes], payloads: list[bytes]) -> None:
        size = sum(map(len, keys)) + sum(map(len, payloads)) + RECORD_OVERHEAD_BYTES * len(keys)
        if self._log.appended_together() is None:
            self._check_room(size)
        self._log.append(self._stream, self._wall_clock(), keys, payloads)
        self.bytes_noted += size
        self._counters.journal_bytes += size

    def _check_room(self, size: int) -> None:
        # Changes come faster than the database takes them. Refusing persistent clients bounds the journal and the time
        # of the next start.
        if self._counters.journal_bytes + size > self._settings.state.journal_bytes:
            self._counters.journal_refused += 1
            raise LogFull(
                f"{self._counters.journal_bytes} bytes of session changes could not be saved to the database yet. "
                "See the node's log for the reason, such as a full disk."
            )


# The journal of deliveries: messages sent to a client and its answers, kept for a restart of the node.


class DeliveryJournal:
    """Journal of the deliveries of persistent sessions. Belongs to the event loop's thread."""

    def __init__(
        self, segment_log: SegmentLog, journal: SessionJournal, note_share: Callable[[str], None], outbox: Outbox
    ) -> None:
        """Join log and journal.

        Args:
            outbox: journals the deliveries of a step at its end.
            note_share: journals the position of the shared subscription of a name; raises LogFull and LogFailed.
        """
        self._log = segment_log
        self._journal = journal
        self._note_share = note_share
        self._outbox = outbox

    def sending(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        """Note deliveries at QoS 1, which need not wait: after a crash they are sent again in any case."""
        self._journal.sending(client_id, deliveries)
        self._outbox.add_last(self._journal.flush)

    def completed(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """Note that deliveries are over."""
        note(lambda: self._journal.completed(client_id, packet_ids))

    def before_sending(
        self, client_id: str, deliveries: Mapping[int, Sent], shares: Collection[str], send: Callable[[], None]
    ) -> bool:
        """Journal deliveries, and send them once the entries are durable, behind earlier ones.

        The same commit moves the positions of their shared subscriptions past them. So after a crash a delivery belongs
        to this client or to the shared subscription, never to both or neither.

        Args:
            shares: names of the shared subscriptions.
            send: writes the packets.

        Returns:
            False when the session cannot be kept: nothing is sent, and the client must be closed.
        """

        def change() -> None:
            with self._journal.together() if shares else nullcontext():
                if deliveries:
                    self._journal.sent(client_id, deliveries)
                for name in shares:
                    self._note_share(name)

        return self._first(client_id, change, send)

    def before_pubrel(self, client_id: str, packet_id: int, send: Callable[[], None]) -> bool:
        """Journal a PUBREC, and send PUBREL once the entry is durable. Returns False as ``before_sending`` does."""
        return self._first(client_id, lambda: self._journal.pubrec(client_id, (packet_id,)), send)

    def _first(self, client_id: str, change: Callable[[], None], then: Callable[[], None]) -> bool:
        try:
            change()
        except (LogFull, LogFailed) as error:
            log.warning("closed MQTT client %r: its session cannot be kept: %s", client_id, error)
            return False
        # Sent only after the sync: after a crash the node must know what the client may have got, or it would call a
        # repeat new.
        self._log.on_durable(lambda error: then() if error is None else None)
        return True


def note(change: Callable[[], None]) -> None:
    """Make an optional change of the journal: without it a restart only sends a message twice."""
    try:
        change()
    except (LogFull, LogFailed) as error:
        log.debug("not in the session journal: %s", error)
