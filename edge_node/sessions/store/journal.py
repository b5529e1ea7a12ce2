"""Journal of changes in persistent sessions: it is in the log, and shares the group commit of the messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

from weft.edge_node.sessions.records import Sent, SessionRecord, SharedRecord
from weft.edge_node.sessions.store.entries import (
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
    SharedEnded,
    SharedMoved,
    Snapshot,
    Subscribed,
    Taken,
    Unsubscribed,
    WillPublished,
    encode_entry,
    ids_of_acks,
    pack_ids,
)
from weft.edge_node.sessions.store.resent import Resent
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings
from weft.edge_node.sessions.store.stored import pack_record
from weft.protocols.mqtt.packets import Subscription
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog

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
                subscription.filter, subscription.qos, subscription.no_local, subscription.retain_as_published,
                subscription.retain_handling, identifier, {stream: seq for stream, seq in began.items() if seq},
            ),
        )  # fmt: skip

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
        if self._counters.journal_bytes + size > self._settings.journal_bytes_max:
            self._counters.journal_refused += 1
            raise LogFull(
                f"{self._counters.journal_bytes} bytes of session changes could not be saved to the database yet. "
                "See the node's log for the reason, such as a full disk."
            )
