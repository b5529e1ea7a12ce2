"""Read positions of sessions and shared subscriptions, noted in the journal for a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.delivery_journal import note
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.sessions.records import SharedRecord
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.subscriptions.filter_starts import FilterStarts
from weft.edge_node.subscriptions.positions import Positions
from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.shared_subscriptions import SharedSubscriptions


class ReaderPositions:
    """Notes positions that have moved. Belongs to the event loop's thread."""

    def __init__(
        self,
        journal: SessionJournal,
        ingest: Ingest,
        readers: LogReaders,
        starts: FilterStarts,
        shared: SharedSubscriptions,
    ) -> None:
        """Start with nothing noted."""
        self._journal = journal
        self._ingest = ingest
        self._readers = readers
        self._starts = starts
        self._shared = shared
        self._noted: dict[str, Positions] = {}
        """Client identifier -> positions as the journal has them."""
        self._noted_shared: dict[str, SharedRecord] = {}
        self._rotation: Iterator[SharedSubscription] = iter(())
        """Shared subscriptions whose turn to be looked at comes although they gave nothing."""

    def note_all(self, sessions: Iterable[Session], shared_idle_max: int | None = None) -> Iterator[None]:
        """Note how far sessions and shared subscriptions are that have moved since the last time, one with each step.

        A shared subscription that gave nothing to its members moves as well: the log has grown behind it. That need
        not be noted often: what it was not given is read again after a restart, and stays in the log until then.

        Args:
            shared_idle_max: shared subscriptions that gave nothing which are looked at, the others with later calls;
                None for all.
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
        """Note where a shared subscription is that may have begun to outlive its members' connections."""
        if shared.name not in self._noted_shared:
            self.note_moved(shared)

    def note_moved(self, shared: SharedSubscription) -> None:
        """Note how far a shared subscription is, if it outlives its members' connections."""
        if shared.persistent:
            note(lambda: self._moved(shared))

    def note_if_moved(self, several: Iterable[SharedSubscription]) -> None:
        """Note how far those shared subscriptions are that have given messages to members since they were noted."""
        for shared in several:
            if self._shared.has_moved(shared):
                self.note_moved(shared)

    def note_share(self, name: str) -> None:
        """Note how far the shared subscription of a name is, together with what one of its members is sent.

        Raises:
            LogFull, LogFailed: it is not noted, and the member must not be sent it.
        """
        shared = self._shared.get(name)
        if shared is not None:
            self._moved(shared)

    def ended(self, shared: SharedSubscription) -> None:
        """Note that a shared subscription has no members any more."""
        if self._noted_shared.pop(shared.name, None) is not None:
            note(lambda: self._journal.shared_ended(shared.name))

    def _moved(self, shared: SharedSubscription) -> None:
        positions, owed = shared.state(self._ingest.ends())
        noted = self._noted_shared.get(shared.name)
        if noted is not None and (noted.positions, noted.owed) == (positions, owed):
            return
        # What is owed seldom changes, and may be long.
        self._journal.shared_moved(shared.name, positions, None if noted is not None and noted.owed == owed else owed)
        self._noted_shared[shared.name] = SharedRecord(shared.name, positions, owed)

    def _note(self, client_id: str, positions: Positions) -> None:
        if self._noted.get(client_id) == positions:
            return
        note(lambda: self._journal.positions(client_id, positions))
        self._starts.passed(client_id, positions)
        self._noted[client_id] = positions
