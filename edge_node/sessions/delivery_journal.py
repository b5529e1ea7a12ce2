"""The journal of deliveries: messages sent to a client and its answers, kept for a restart of the node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext

from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.subscriptions.outbox import Outbox
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog

log = logging.getLogger(__name__)


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
        self._outbox.last = self._journal.flush

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
        self._log.on_durable(lambda error: then() if error is None else None)
        return True


def note(change: Callable[[], None]) -> None:
    """Make an optional change of the journal: without it a restart only sends a message twice."""
    try:
        change()
    except (LogFull, LogFailed) as error:
        log.debug("not in the session journal: %s", error)
