"""The life of sessions in the journal: the state that a restart needs, as it changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.journal import SessionJournal, note
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.sessions.records import ChangeRates, SessionRecord, SharedRecord
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.message import Positions
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    FilterStarts,
    SharedSubscription,
    SharedSubscriptions,
)
from weft.protocols.topics import SHARE_PREFIX


class Persistence:
    """Journal of sessions that outlive their connection, or that have a will. Belongs to the event loop's thread."""

    def __init__(
        self, journal: SessionJournal, changes: ChangeRates, ingest: Ingest, readers: LogReaders, starts: FilterStarts
    ) -> None:
        """Start with no session in the journal."""
        self._journal = journal
        self.changes = changes
        """Rates of owners; changes of an owner in debt wait if they can."""
        self._ingest = ingest
        self._readers = readers
        self._starts = starts
        self._journaled: set[Session] = set()
        """Sessions that the journal has."""
        self._late: dict[Session, None] = {}
        """Sessions whose client has gone, with the journal entry still to be written."""

    def knows(self, session: Session) -> bool:
        """Return whether the journal has a session."""
        return session in self._journaled

    def restored(self, session: Session) -> None:
        """Note that the journal has a session from the last run."""
        self._journaled.add(session)

    def opened(self, session: Session) -> None:
        """Journal that a client has connected.

        Raises:
            LogFull, LogFailed: the session cannot be kept.
        """
        if session.persistent or session.will is not None:
            self.changes.charge(session.owner, lambda: self._journal.opened(self._record(session)))
            self._journaled.add(session)
        elif session in self._journaled:
            self._journal.ended(session.client_id)
            self._journaled.discard(session)

    def closed(self, session: Session, *, at_once: bool) -> None:
        """Journal that the client of a persistent session has gone; later, if its owner has made too many changes.

        A crash before that leaves a session whose connection was lost with the node.

        Args:
            at_once: do not wait for the owner's rate.
        """
        if not at_once and self.changes.rates.debt_s(session.owner):
            self._late[session] = None
            return
        self._late.pop(session, None)
        self.changes.charge(session.owner, lambda: note(lambda: self._journal.closed(self._record(session))))

    def note_late(self, *, at_once: bool = False) -> None:
        """Journal which clients have gone, as far as their owners may make changes again."""
        for session in list(self._late):
            if session.ended or session.connected:
                del self._late[session]
            else:
                self.closed(session, at_once=at_once)

    def lost(self, session: Session, at: int) -> None:
        """Journal that the session's connection was lost with the node's last run."""
        if session.persistent:
            note(lambda: self._journal.lost(session.client_id, at))

    def ended(self, session: Session) -> None:
        """Journal the end of a session. With a will still to be published it stays in the journal for that."""
        self._starts.forget(session.client_id)
        if session in self._journaled and session.will is None:
            self._journaled.discard(session)
            note(lambda: self._journal.ended(session.client_id))

    def will_published(self, session: Session) -> None:
        """Journal, together with the will's records, that the will is in the log.

        Raises:
            LogFull, LogFailed: the entry is not written.
        """
        self._journal.will_published(session.client_id)
        if session.ended:  # the journal kept it only for its will
            self._journal.ended(session.client_id)
            self._journaled.discard(session)

    def will_denied(self, session: Session) -> None:
        """Journal that the will must not be published, not even after a restart."""
        note(lambda: self._journal.will_published(session.client_id))

    def subscribed(self, session: Session, subscription: ClientSubscription, *, is_new: bool) -> None:
        """Journal that a filter is about to be added or changed: messages published before it was added are not for it.

        Raises:
            LogFull, LogFailed: the entry cannot be written.
        """
        client_id, options, window = session.client_id, subscription.options, session.window
        began: Positions = dict(self._starts.of(client_id, options.filter))
        if is_new and not options.filter.startswith(SHARE_PREFIX):  # these have positions of their own
            # A session that ends with its connection reads the log only when messages wait for it.
            may_read = session.persistent or window.queued or window.catch_up is not None
            ends = self._ingest.ends(unrouted=not session.persistent)
            began = {stream: seq for stream, seq in ends.items() if seq} if may_read else {}
        if session.persistent:
            self.changes.charge(
                session.owner, lambda: self._journal.subscribed(client_id, options, subscription.identifier, began)
            )
        self._starts.set(client_id, subscription, began)
        self._readers.began(window, subscription, began)

    def unsubscribed(self, session: Session, text: str) -> None:
        """Journal that a filter is about to be removed.

        Raises:
            LogFull, LogFailed: the entry cannot be written.
        """
        if session.persistent:
            self.changes.charge(session.owner, lambda: self._journal.unsubscribed(session.client_id, text))
        self._starts.drop(session.client_id, text)

    def restore_starts(self, session: Session, record: SessionRecord) -> None:
        """Restore the starts of a session's subscriptions."""
        for text, began in record.began.items():
            if text in session.subscriptions:
                self._starts.set(session.client_id, session.subscriptions[text][0], began)

    def _record(self, session: Session) -> SessionRecord:
        positions = self._readers.positions(session.window)
        self._starts.passed(session.client_id, positions)
        began = {each.options.filter: ends for each, ends in self._starts.all_of(session.client_id)}
        return session.record(positions, self._readers.done(session.window), began)


# Read positions of sessions and shared subscriptions, written to the journal for a restart.


class ReaderPositions:
    """Journal of positions that have moved. Belongs to the event loop's thread."""

    def __init__(
        self,
        journal: SessionJournal,
        ingest: Ingest,
        readers: LogReaders,
        starts: FilterStarts,
        shared: SharedSubscriptions,
    ) -> None:
        """Start without journaled positions."""
        self._journal = journal
        self._ingest = ingest
        self._readers = readers
        self._starts = starts
        self._shared = shared
        self._noted: dict[str, Positions] = {}
        """Client identifier -> positions as the journal has them."""
        self._noted_shared: dict[str, SharedRecord] = {}
        self._rotation: Iterator[SharedSubscription] = iter(())
        """Rotation over the shared subscriptions that delivered nothing."""

    def note_all(self, sessions: Iterable[Session], shared_idle_max: int | None = None) -> Iterator[None]:
        """Journal the positions of sessions and shared subscriptions that have moved since the last time, one at each
        step.

        A shared subscription that delivered nothing moves as well: the log has grown behind it. Its position may be
        old: a restart reads more of the log again, which stays until then.

        Args:
            shared_idle_max: maximum number of shared subscriptions without deliveries to check, the others with later
                calls; None for all.
        """
        for session in sessions:
            if not session.connected:
                continue
            if session.persistent:
                self._note(session.client_id, self._readers.positions(session.window))
            elif self._starts.knows(session.client_id):
                self._starts.passed(session.client_id, self._readers.positions(session.window))
            yield
        for shared in chain(self._shared.take_moved(), self._idle(shared_idle_max)):
            if self._shared.get(shared.name) is shared:  # it may have ended between two steps
                self.note_moved(shared)
            yield

    def _idle(self, count: int | None) -> Iterator[SharedSubscription]:
        if count is None:
            return iter(self._shared.all())
        found = list(islice(self._rotation, count))
        if len(found) < count:
            self._rotation = iter(self._shared.all())
        return iter(found)

    def forget(self, client_id: str) -> None:
        """Forget a session that has ended."""
        self._noted.pop(client_id, None)

    # --- shared subscriptions

    def note_joined(self, shared: SharedSubscription) -> None:
        """Journal the position of a shared subscription that may have begun to outlive its members' connections."""
        if shared.name not in self._noted_shared:
            self.note_moved(shared)

    def note_moved(self, shared: SharedSubscription) -> None:
        """Journal the position of a shared subscription, if it outlives its members' connections."""
        if shared.persistent:
            note(lambda: self._moved(shared))

    def note_if_moved(self, several: Iterable[SharedSubscription]) -> None:
        """Journal the positions of shared subscriptions that have delivered to members since their last entry."""
        for shared in several:
            if self._shared.has_moved(shared):
                self.note_moved(shared)

    def note_share(self, name: str) -> None:
        """Journal the position of the shared subscription of a name, together with a delivery to one of its members.

        Raises:
            LogFull, LogFailed: the entry is not written, and the delivery must not be sent.
        """
        shared = self._shared.get(name)
        if shared is not None:
            self._moved(shared)

    def ended(self, shared: SharedSubscription) -> None:
        """Journal that a shared subscription has no members any more."""
        if self._noted_shared.pop(shared.name, None) is not None:
            note(lambda: self._journal.shared_ended(shared.name))

    def _moved(self, shared: SharedSubscription) -> None:
        positions, owed = shared.state(self._ingest.ends())
        noted = self._noted_shared.get(shared.name)
        if noted is not None and (noted.positions, noted.owed) == (positions, owed):
            return
        # ``owed`` seldom changes, and may be long.
        self._journal.shared_moved(shared.name, positions, None if noted is not None and noted.owed == owed else owed)
        self._noted_shared[shared.name] = SharedRecord(shared.name, positions, owed)

    def _note(self, client_id: str, positions: Positions) -> None:
        if self._noted.get(client_id) == positions:
            return
        note(lambda: self._journal.positions(client_id, positions))
        self._starts.passed(client_id, positions)
        self._noted[client_id] = positions
