"""What all sessions share: the journal, the way back into the log for those that are behind, and retained messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_node.broker_ports import Backlog, LogRecord, Sent, SessionJournal, SessionRecord
from edge_node.catch_up import CatchUp
from edge_node.counters import Counters
from edge_node.ingest import Ingest
from edge_node.message import NOWHERE, Message
from edge_node.message_headers import from_headers
from edge_node.outbound import Outbound
from edge_node.outbound_ports import QueueBudget
from edge_node.retained_delivery import Match, RetainedFeed
from edge_node.session import Session
from edge_node.session_reader import SessionReader
from edge_node.shared_groups import Group
from edge_node.subscriptions import Entry, Subscriptions
from protocols.batch import Flag
from protocols.mqtt.encoder import PUBREL
from protocols.mqtt.packets import Subscription
from protocols.mqtt.reason_codes import ReasonCode
from storage.segment_log import LogFailed, LogFull, SegmentLog

if TYPE_CHECKING:
    from edge_node.sessions import Sessions

log = logging.getLogger(__name__)


class Keeping:
    """Keeps sessions whole. Belongs to the event loop's thread. ``ingest`` is set before the first client comes."""

    ingest: Ingest

    def __init__(  # noqa: PLR0917
        self,
        segment_log: SegmentLog,
        subscriptions: Subscriptions,
        journal: SessionJournal,
        backlog: Backlog,
        retained: Match,
        wall_clock: Callable[[], int],
        counters: Counters,
        budget: QueueBudget,
    ) -> None:
        """Join the log and what reads and writes it for sessions."""
        self.counters = counters
        self.budget = budget
        self.wall_clock = wall_clock
        self.touched: list[Outbound] = []
        self.subscriptions = subscriptions
        self._log = segment_log
        self._journal = journal
        self._backlog = backlog
        self._retained = retained
        self._noted: dict[str, dict[int, int]] = {}
        """Identifier -> positions as the journal has them."""

    def flush(self) -> None:
        """Write what was gathered for each client, in one go."""
        touched = self.touched
        while touched:
            touched.pop().flush()

    # --- the life of a session

    def recover(self) -> Sequence[SessionRecord]:
        """What the last run left."""
        return self._journal.recover()

    def restored(self, sessions: Sessions, records: Sequence[SessionRecord]) -> None:
        """Sessions are there again: each is to read what it missed once its client comes."""
        by_id = {record.client_id: record for record in records}
        for session in sessions.all():
            record = by_id[session.client_id]
            outbound = session.outbound
            doubtful = self.ingest.ends() if record.disconnected_at is None else None
            reader = SessionReader(outbound, self, record.done, doubtful)
            outbound.catch_up = self._catch_up(reader, record.positions)
        for group in sessions.groups:
            kept = by_id.get(group.record_id)
            if kept is not None:
                group.catch_up = self._catch_up(group, kept.positions)
            elif group.persistent:
                self.group_behind(group, None)

    def opened(self, session: Session, *, existed: bool) -> None:
        """A client has come. Raises LogFull and LogFailed."""
        if session.persistent:
            self._journal.opened(self._record(session))
        elif existed:
            self._journal.ended(session.client_id)

    def resume(self, session: Session) -> None:
        """Send what the client is owed: first what it has not answered, then what it missed."""
        outbound = session.outbound
        catch_up = outbound.catch_up
        if any(not message.topic for message, _, _ in outbound.inflight.values()):
            SessionReader(outbound, self).fetch_inflight(self._backlog)
        elif catch_up is not None and not outbound.inflight and catch_up.level:
            outbound.catch_up = None
        if outbound.catch_up is not None:
            outbound.catch_up.start()
        outbound.pump()
        self.flush()

    def away(self, session: Session) -> None:
        """The client of a persistent session has gone."""
        outbound = session.outbound
        if outbound.catch_up is None:
            self.fall_behind(outbound, None)
        else:
            outbound.catch_up.stop()
            outbound.drop_queue()
        self._note(lambda: self._journal.closed(self._record(session)))

    def will_published(self, session: Session) -> None:
        """A delayed will is not to be published again after a restart."""
        if session.persistent:
            self._note(lambda: self._journal.closed(self._record(session)))

    def ended(self, session: Session) -> None:
        """A session is no more, or will end with its connection."""
        outbound = session.outbound
        if outbound.catch_up is not None and not session.connected:
            outbound.catch_up.stop()
            outbound.catch_up = None
        self._noted.pop(session.client_id, None)
        if outbound.persistent or session.persistent:
            self._note(lambda: self._journal.ended(session.client_id))

    def subscribed(self, session: Session, options: Subscription, identifier: int | None) -> None:
        """A filter is about to be added. Raises LogFull and LogFailed."""
        if session.persistent:
            self._journal.subscribed(session.client_id, options, identifier)

    def unsubscribed(self, session: Session, text: str) -> None:
        """A filter is about to be taken out. Raises LogFull and LogFailed."""
        if session.persistent:
            self._journal.unsubscribed(session.client_id, text)

    def began(self, session: Session, entry: Entry) -> None:
        """A new subscription: a session that is behind is not to read what was published before it."""
        catch_up = session.outbound.catch_up
        if catch_up is not None and isinstance(catch_up.reader, SessionReader):
            catch_up.reader.began(entry, self.ingest.ends())

    def send_retained(self, entry: Entry) -> None:
        """Send the retained messages of a subscription, as fast as the client takes them."""
        outbound = entry.outbound
        if outbound.feed is None:
            outbound.feed = RetainedFeed(outbound, self._retained)
        outbound.feed.add(entry)

    # --- falling behind

    def fall_behind(self, outbound: Outbound, first: Message | None) -> None:
        """Read the session's messages from the log, those in its queue included."""
        queued = [message for message, _, _ in outbound.queue or ()]
        outbound.drop_queue()
        reader = SessionReader(outbound, self)
        outbound.catch_up = self._catch_up(reader, self._positions_before(queued, first))
        if outbound.link is not None:
            self.counters.sessions_behind += 1
            outbound.catch_up.start()

    def group_behind(self, group: Group, first: Message | None) -> None:
        """Read the group's messages from the log, those in its queue included."""
        queued = list(group.queue)
        group.drop_queue()
        group.catch_up = self._catch_up(group, self._positions_before(queued, first))
        if group.has_room:
            group.catch_up.start()

    def message_of(self, stream: int, record: LogRecord) -> Message | None:
        """A record as a message; None when it was published at QoS 0, has expired, or is read in another stream."""
        if record.flags & Flag.PUBLISHED_QOS0:
            return None
        target = self.ingest.target(record.topic)
        if target.streams and target.streams[0] != stream and stream in target.streams:
            return None
        properties, expires_ns = from_headers(record.headers)
        message = Message(
            record.topic, record.payload, 2 if record.flags & Flag.PUBLISHED_QOS2 else 1,
            bool(record.flags & Flag.RETAINED), properties, expires_ns, stream, record.seq,
        )  # fmt: skip
        if message.expired(self.wall_clock()):
            self.counters.messages_expired += 1
            return None
        return message

    def positions(self, outbound: Outbound) -> dict[int, int]:
        """Stream -> the first seq that a client has not been sent."""
        if outbound.catch_up is not None:
            return dict(outbound.catch_up.positions)
        return self._positions_before([message for message, _, _ in outbound.queue or ()], None)

    def note_positions(self, sessions: Sessions) -> None:
        """Journal how far sessions are that have moved since the last time; called every second or so."""
        for session in sessions.all():
            if session.persistent and session.connected:
                self._note_position(session.client_id, self.positions(session.outbound))
        for group in sessions.groups:
            if group.persistent:
                self._note_position(group.record_id, self._group_record(group).positions, group)

    # --- deliveries in flight

    def journal_sent(self, outbound: Outbound, deliveries: dict[int, Sent], packets: list[bytes]) -> None:
        """Send packets once the journal has the QoS 2 deliveries among them."""
        link = outbound.link
        outbound.held += 1

        def durable(error: BaseException | None) -> None:
            if error is None and link is not None and outbound.link is link:
                outbound.held -= 1
                link.send(b"".join(packets))

        def note() -> None:
            if deliveries:
                self._journal.sent(outbound.client_id, deliveries)

        self.counters.deliveries_sent += len(deliveries)
        self._or_displace(outbound, note, durable)

    def journal_pubrec(self, outbound: Outbound, packet_id: int) -> None:
        """Send PUBREL once the journal has that PUBREC came."""
        link = outbound.link

        def durable(error: BaseException | None) -> None:
            if error is None and link is not None and outbound.link is link:
                link.send(PUBREL + packet_id.to_bytes(2, "big"))

        self._or_displace(outbound, lambda: self._journal.pubrec(outbound.client_id, (packet_id,)), durable)

    def journal_sending(self, outbound: Outbound, deliveries: dict[int, Sent]) -> None:
        """Note deliveries at QoS 1, which need not wait: after a crash they are sent again in any case."""
        self._note(lambda: self._journal.sent(outbound.client_id, deliveries))

    def journal_completed(self, outbound: Outbound, packet_ids: list[int]) -> None:
        """Note that deliveries are over."""
        self._note(lambda: self._journal.completed(outbound.client_id, packet_ids))

    # --- inside

    def group_ended(self, group: Group) -> None:
        """A group has no members any more."""
        if group.catch_up is not None:
            group.catch_up.stop()
        if self._noted.pop(group.record_id, None) is not None:
            self._note(lambda: self._journal.ended(group.record_id))

    def _record(self, session: Session) -> SessionRecord:
        catch_up = session.outbound.catch_up
        reader = catch_up.reader if catch_up is not None else None
        done = set(reader.done) if isinstance(reader, SessionReader) else set()
        return session.record(self.positions(session.outbound), done)

    def _group_record(self, group: Group) -> SessionRecord:
        if group.catch_up is not None:
            positions = dict(group.catch_up.positions)
        else:
            positions = self._positions_before(list(group.queue), None)
        for outbound in group.members:
            for message, grant, qos in outbound.inflight.values():
                # A persistent member's deliveries are in the journal; another's are lost in a crash.
                if grant.group is group and qos == 1 and not outbound.persistent and message.stream != NOWHERE:
                    positions[message.stream] = min(message.seq, positions.get(message.stream, message.seq))
        return SessionRecord(group.record_id, 5, 0xFFFFFFFF, positions=positions)

    def _positions_before(self, queued: list[Message], first: Message | None) -> dict[int, int]:
        positions = self.ingest.ends()
        lowest: dict[int, int] = {}
        for message in (*queued, *([first] if first is not None else ())):
            if message.stream != NOWHERE:
                lowest.setdefault(message.stream, message.seq)
        return positions | lowest

    def _catch_up(self, reader: SessionReader | Group, positions: dict[int, int]) -> CatchUp:
        everywhere = {stream: positions.get(stream, 0) for stream in self.ingest.streams}
        return CatchUp(reader, everywhere, self._backlog, self._log)

    def _note_position(self, identifier: str, positions: dict[int, int], group: Group | None = None) -> None:
        noted = self._noted.get(identifier)
        if noted == positions:
            return
        if group is not None and noted is None:
            self._note(lambda: self._journal.opened(self._group_record(group)))
        else:
            self._note(lambda: self._journal.positions(identifier, positions))
        self._noted[identifier] = positions

    def _note(self, change: Callable[[], None]) -> None:
        """What a restart may miss without breaking a promise: then something is sent twice."""
        try:
            change()
        except (LogFull, LogFailed) as error:
            log.debug("not in the session journal: %s", error)

    def _or_displace(
        self, outbound: Outbound, change: Callable[[], None], durable: Callable[[BaseException | None], None]
    ) -> None:
        try:
            change()
        except (LogFull, LogFailed) as error:
            log.warning("closed MQTT client %r: its session cannot be kept: %s", outbound.client_id, error)
            if outbound.link is not None:
                outbound.link.displace(ReasonCode.QUOTA_EXCEEDED)
            return
        self._log.on_durable(durable)
