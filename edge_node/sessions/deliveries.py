"""What all clients' deliveries share: the journal of what is in flight, and bounds (``outbound_ports.Keeper``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.window_ports import QueueBudget
from weft.edge_node.subscriptions.message import Message
from weft.protocols.mqtt.encoder import PUBREL
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.subscriptions.shared_subscription import Group

log = logging.getLogger(__name__)


class Deliveries:
    """Journals deliveries. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        segment_log: SegmentLog,
        journal: SessionJournal,
        wall_clock: Callable[[], int],
        counters: Counters,
        budget: QueueBudget,
        fall_behind: Callable[[Outbound, Message | None], None],
        together: Callable[[], AbstractContextManager[None]],
        group_moved: Callable[[Group], None],
    ) -> None:
        """Join log and journal.

        Args:
            fall_behind: has a client's messages from one on read from the log.
            together: ``SessionJournal.together``, or nothing within it.
            group_moved: journals how far a shared subscription is; raises LogFull and LogFailed.
        """
        self._together = together
        self._group_moved = group_moved
        self.counters = counters
        self.budget = budget
        self.wall_clock = wall_clock
        self.fall_behind = fall_behind
        self.touched: list[Outbound] = []
        self._log = segment_log
        self._journal = journal

    def flush(self) -> None:
        """Write what was gathered for each client, in one go."""
        touched = self.touched
        while touched:
            touched.pop().flush()

    def dropped(self, outbound: Outbound) -> None:
        """Count a message that the client has no room for and the log does not have; log the first of a session."""
        self.counters.deliveries_dropped += 1
        if not outbound.told_of_drops:
            outbound.told_of_drops = True
            log.warning(
                "MQTT client %r acknowledges too slowly: messages whose topic no stream matches are dropped beyond "
                "limits.session_queue. Add a stream for their topics, and the client gets them from the log",
                outbound.client_id,
            )

    def journal_sent(self, outbound: Outbound, deliveries: dict[int, Sent], packets: list[bytes]) -> None:
        """Send packets once the journal has the QoS 2 deliveries among them, and in the same commit that the shared
        subscriptions which they are of have passed them: then a crash leaves them to this client or to the group, never
        to both or neither."""
        link = outbound.link
        outbound.held += 1

        def durable(error: BaseException | None) -> None:
            if error is None and link is not None and outbound.link is link:
                outbound.held -= 1
                link.send(b"".join(packets))

        def note() -> None:
            groups = [group for group in outbound.groups if group.persistent]
            with self._together() if groups else nullcontext():
                if deliveries:
                    self._journal.sent(outbound.client_id, deliveries)
                for group in groups:
                    self._group_moved(group)

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
        note(lambda: self._journal.sent(outbound.client_id, deliveries))

    def journal_completed(self, outbound: Outbound, packet_ids: list[int]) -> None:
        """Note that deliveries are over."""
        note(lambda: self._journal.completed(outbound.client_id, packet_ids))

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


def note(change: Callable[[], None]) -> None:
    """What a restart may miss without breaking a promise: then something is sent twice."""
    try:
        change()
    except (LogFull, LogFailed) as error:
        log.debug("not in the session journal: %s", error)
