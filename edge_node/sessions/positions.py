"""Read positions of sessions and shared subscriptions, written to the journal for a restart."""

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
