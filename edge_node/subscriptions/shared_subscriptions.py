"""All shared subscriptions: which groups there are, who joins and leaves them (MQTT 5.0 section 4.8.2)."""

from __future__ import annotations

from weft.edge_node.sessions.keeping import Keeping
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.shared_subscription import Group
from weft.edge_node.subscriptions.subscriptions import Entry, Subscriptions
from weft.protocols.topics import Share


class Shares:
    """The groups by share name and filter. Belongs to the event loop's thread."""

    def __init__(self, subscriptions: Subscriptions, keeping: Keeping, bytes_max: int) -> None:
        """Start without any.

        Args:
            bytes_max: bytes of messages that may wait with one group.
        """
        self._subscriptions = subscriptions
        self._keeping = keeping
        self._bytes_max = bytes_max
        self._groups: dict[tuple[str, str], Group] = {}

    @property
    def groups(self) -> list[Group]:
        """All of them."""
        return list(self._groups.values())

    def join(self, entry: Entry, share: Share) -> Group:
        """Make a client a member of a group, or change its options."""
        group = self._groups.get((share.name, share.filter))
        if group is None:
            group = Group(share.name, share.filter, self._keeping, self._bytes_max)
            self._groups[share.name, share.filter] = group
            group.join(entry.outbound, entry)
            self._subscriptions.add(group)
        else:
            group.join(entry.outbound, entry)
            self._subscriptions.changed()
        return group

    def leave(self, session: Session, group: Group) -> None:
        """A client unsubscribes, or its session ends. A group without members is no more."""
        self._return(session, group, for_good=True)
        if not group.leave(session.outbound):
            self._groups.pop((group.share, group.filter), None)
            self._subscriptions.remove(group)
            self._keeping.group_ended(group)

    def member_away(self, session: Session) -> None:
        """A client has gone: what it did not acknowledge goes to other members of its groups."""
        for _, group in session.entries.values():
            if group is not None:
                self._return(session, group, for_good=not session.persistent)
                group.detached()
        if session.outbound.groups:
            self._keeping.flush()

    def _return(self, session: Session, group: Group, *, for_good: bool) -> None:
        """QoS 1 messages that a member did not acknowledge go to others; QoS 2 ones must not [MQTT-4.8.2-5]."""
        outbound = session.outbound
        if outbound.link is not None:
            return  # it unsubscribes, and still acknowledges what it has been sent
        of_group = [
            packet_id
            for packet_id, (message, grant, qos) in outbound.inflight.items()
            if grant.group is group and qos == 1
        ]
        for packet_id in reversed(of_group):
            message = outbound.inflight[packet_id][0]
            if for_good:
                outbound.give_back(packet_id)
                if not group.take_back(message, outbound):
                    group.put_first(message)
            elif group.take_back(message, outbound):
                outbound.give_back(packet_id)
        if for_good and of_group:
            self._keeping.note_moved(group)  # before the journal forgets who had them
