"""What all sessions share: the journal, the way back into the log for those that are behind, and retained messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.deliveries import Deliveries, note
from weft.edge_node.sessions.reader import SessionReader
from weft.edge_node.sessions.records import Sent, SessionRecord
from weft.edge_node.sessions.redelivery import InFlight
from weft.edge_node.sessions.retained_delivery import Match, RetainedFeed
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.stored_messages import StoredMessages
from weft.edge_node.sessions.window_ports import QueueBudget
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.filter_starts import FilterStarts
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.shared_subscription import Group
from weft.edge_node.subscriptions.subscriptions import Entry, Subscriptions
from weft.protocols.topics import SHARE_PREFIX
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.sessions.sessions import Sessions


class Keeping:
    """Keeps sessions whole. Belongs to the event loop's thread."""

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
        self.subscriptions = subscriptions
        self.deliveries = Deliveries(
            segment_log, journal, wall_clock, counters, budget, self.fall_behind, journal.together, self.group_moved
        )  # fmt: skip
        self.flush = self.deliveries.flush
        self.messages = StoredMessages(segment_log, wall_clock, counters)
        self.message_of = self.messages.read
        self._log = segment_log
        self._journal = journal
        self._backlog = backlog
        self._retained = retained
        self._noted: dict[str, dict[int, int]] = {}
        """Identifier -> positions as the journal has them."""
        self._noted_groups: dict[str, SessionRecord] = {}
        self._starts = FilterStarts()

    @property
    def ingest(self) -> Ingest:
        """Where messages come from."""
        return self.messages.ingest

    # --- the life of a session

    def recover(self) -> Sequence[SessionRecord]:
        """What the last run left."""
        return self._journal.recover()

    def restored(self, sessions: Sessions, records: Sequence[SessionRecord]) -> None:
        """Sessions are there again: each is to read what it missed once its client comes."""
        by_id = {record.client_id: record for record in records}
        for session in sessions.all():
            record = by_id[session.client_id]
            if not session.persistent:
                continue
            outbound = session.outbound
            doubtful = self.ingest.ends() if record.disconnected_at is None else None
            for text, began in record.began.items():
                if text in session.entries:
                    self._starts.set(session.client_id, session.entries[text][0], began)
            reader = self._reader(outbound, record.done, doubtful)
            outbound.catch_up = self._catch_up(reader, record.positions)
        for group in sessions.filters.groups:
            kept = by_id.get(group.record_id)
            if kept is not None:
                group.passed = dict(kept.positions)
                group.owed = {(sent.stream, sent.seq) for sent in kept.inflight.values()}
                group.catch_up = self._catch_up(group, _lowered(kept.positions, group.owed))
            elif group.persistent:
                self.group_behind(group, None)

    def opened(self, session: Session) -> None:
        """A client has come. Raises LogFull and LogFailed."""
        if session.persistent or session.will is not None:
            self._journal.opened(self._record(session))
            session.journaled = True
        elif session.journaled:
            self._journal.ended(session.client_id)
            session.journaled = False

    def resume(self, session: Session) -> None:
        """Send what the client is owed: first what it has not answered, then what it missed."""
        outbound = session.outbound
        catch_up = outbound.catch_up
        if any(not message.topic for message, _, _ in outbound.inflight.values()):
            in_flight = InFlight(outbound, self.subscriptions, self.messages, self.flush)
            SessionReader(outbound, in_flight).fetch_inflight(self._backlog)
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
        note(lambda: self._journal.closed(self._record(session)))
        for group in outbound.groups:
            self.note_moved(group)  # what the session took over from another member is now in its record

    def lost(self, session: Session, at: int) -> None:
        """The session's connection is gone with the node that had it."""
        if session.persistent:
            note(lambda: self._journal.lost(session.client_id, at))

    def ended(self, session: Session) -> None:
        """A session is no more. The journal is told with its will, if that is still to be published."""
        outbound = session.outbound
        if outbound.catch_up is not None:
            outbound.catch_up.stop()
            outbound.catch_up = None
        self._noted.pop(session.client_id, None)
        self._starts.forget(session.client_id)
        if session.journaled and session.will is None:
            session.journaled = False
            note(lambda: self._journal.ended(session.client_id))

    def subscribed(self, session: Session, entry: Entry, *, is_new: bool) -> None:
        """A filter is about to be added or changed: what was published before it was added is not for it.

        Raises:
            LogFull, LogFailed: the journal cannot note it.
        """
        client_id, options, outbound = session.client_id, entry.options, session.outbound
        began: Mapping[int, int] = self._starts.of(client_id, options.filter)
        if is_new and not options.filter.startswith(SHARE_PREFIX):  # a group has a position of its own
            # A session that ends with its connection reads the log only when messages wait for it.
            may_read = session.persistent or outbound.queue or outbound.catch_up is not None
            began = {stream: seq for stream, seq in self.ingest.ends().items() if seq} if may_read else {}
        if session.persistent:
            self._journal.subscribed(client_id, options, entry.identifier, began)
        self._starts.set(client_id, entry, began)
        catch_up = outbound.catch_up
        if began and catch_up is not None and isinstance(catch_up.reader, SessionReader):
            catch_up.reader.began(entry, dict(began))

    def unsubscribed(self, session: Session, text: str) -> None:
        """A filter is about to be taken out. Raises LogFull and LogFailed."""
        if session.persistent:
            self._journal.unsubscribed(session.client_id, text)
        self._starts.drop(session.client_id, text)

    def send_retained(self, entry: Entry) -> None:
        """Send the retained messages of a subscription, as fast as the client takes them."""
        outbound = entry.outbound
        if outbound.feed is None:
            outbound.feed = RetainedFeed(outbound, self._retained, self.messages.keep_retained, self.flush)
        outbound.feed.add(entry)

    # --- falling behind

    def fall_behind(self, outbound: Outbound, first: Message | None) -> None:
        """Read the session's messages from the log, those in its queue included."""
        queued = [message for message, _, _ in outbound.queue or ()]
        outbound.drop_queue()
        outbound.catch_up = self._catch_up(self._reader(outbound), self._positions_before(queued, first))
        if outbound.link is not None:
            self.counters.sessions_behind += 1
            outbound.catch_up.start()

    def group_behind(self, group: Group, first: Message | None) -> None:
        """Read the group's messages from the log, those in its queue included."""
        queued = list(group.queue)
        positions = self._positions_before(queued, first)
        group.owed |= {
            (message.stream, message.seq) for message in queued if message.seq < group.passed.get(message.stream, 0)
        }
        group.drop_queue(positions)
        group.catch_up = self._catch_up(group, positions)
        if group.has_room:
            group.catch_up.start()

    def positions(self, outbound: Outbound) -> dict[int, int]:
        """Stream -> the first seq that a client has not been sent."""
        if outbound.catch_up is not None:
            return dict(outbound.catch_up.positions)
        return self._positions_before([message for message, _, _ in outbound.queue or ()], None)

    def note_positions(self, sessions: Sessions) -> None:
        """Journal how far sessions are that have moved since the last time; called every second or so."""
        for session in sessions.all():
            if not session.connected:
                continue
            if session.persistent:
                self._note_position(session.client_id, self.positions(session.outbound))
            elif self._starts.knows(session.client_id):
                self._starts.passed(session.client_id, self.positions(session.outbound))
        for group in sessions.filters.groups:
            self.note_moved(group)

    def note_group(self, group: Group) -> None:
        """A group may have begun to outlive its members: after a restart it goes on from here."""
        if group.record_id not in self._noted_groups:
            self.note_moved(group)

    def note_moved(self, group: Group) -> None:
        """Journal how far a group is, if it is to outlive its members."""
        if group.persistent:
            note(lambda: self.group_moved(group))

    def group_moved(self, group: Group) -> None:
        """Journal how far a group is that is to outlive its members. Raises LogFull and LogFailed."""
        record, noted = self._group_record(group), self._noted_groups.get(group.record_id)
        if noted is None or noted.inflight != record.inflight:
            self._journal.opened(record)
        elif noted.positions != record.positions:
            self._journal.positions(group.record_id, record.positions)
        self._noted_groups[group.record_id] = record

    def group_ended(self, group: Group) -> None:
        """A group has no members any more."""
        if group.catch_up is not None:
            group.catch_up.stop()
        if self._noted_groups.pop(group.record_id, None) is not None:
            note(lambda: self._journal.ended(group.record_id))

    # --- inside

    def _record(self, session: Session) -> SessionRecord:
        catch_up = session.outbound.catch_up
        reader = catch_up.reader if catch_up is not None else None
        done = set(reader.done) if isinstance(reader, SessionReader) else set()
        positions = self.positions(session.outbound)
        self._starts.passed(session.client_id, positions)
        began = {entry.options.filter: ends for entry, ends in self._starts.all_of(session.client_id)}
        return session.record(positions, done, began)

    def _reader(
        self, outbound: Outbound, done: set[tuple[int, int]] | None = None, doubtful: dict[int, int] | None = None
    ) -> SessionReader:
        reader = SessionReader(outbound, self, done, doubtful)
        for entry, ends in self._starts.all_of(outbound.client_id):
            reader.began(entry, ends)
        return reader

    def _group_record(self, group: Group) -> SessionRecord:
        passed = group.passed
        reached = self.ingest.ends() if group.catch_up is None else group.catch_up.positions
        waiting = [(message.stream, message.seq) for message in group.queue]
        ahead = (each for each in waiting if each[0] != NOWHERE and each[1] >= passed.get(each[0], 0))
        positions = _lowered({stream: max(seq, passed.get(stream, 0)) for stream, seq in reached.items()}, ahead)
        owed = sorted(each for each in group.unsettled() if each[1] < positions.get(each[0], 0))
        inflight = {number: Sent(stream, seq, 1) for number, (stream, seq) in enumerate(owed, 1)}
        return SessionRecord(group.record_id, 5, 0xFFFFFFFF, positions=positions, inflight=inflight)

    def _positions_before(self, queued: list[Message], first: Message | None) -> dict[int, int]:
        missing = [(message.stream, message.seq) for message in queued if message.stream != NOWHERE]
        if first is not None and first.stream != NOWHERE:
            missing.append((first.stream, first.seq))
        return _lowered(self.ingest.ends(), missing)

    def _catch_up(self, reader: SessionReader | Group, positions: dict[int, int]) -> CatchUp:
        everywhere = {stream: positions.get(stream, 0) for stream in self.ingest.streams}
        return CatchUp(reader, everywhere, self._backlog.read, self._log)

    def _note_position(self, identifier: str, positions: dict[int, int]) -> None:
        if self._noted.get(identifier) == positions:
            return
        note(lambda: self._journal.positions(identifier, positions))
        self._starts.passed(identifier, positions)
        self._noted[identifier] = positions


def _lowered(positions: Mapping[int, int], missing: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Positions from which these are read, too."""
    lowered = dict(positions)
    for stream, seq in missing:
        lowered[stream] = min(seq, lowered.get(stream, seq))
    return lowered
