"""Live delivery: what is published now, to who is there and keeps up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.packets_out import OWN, shared_parts
from weft.edge_node.subscriptions.message import Message, split_expiry
from weft.edge_node.subscriptions.subscriptions import Grant, Subscriptions
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Publish

# As plain integers: an IntFlag's arithmetic costs more than the rest of a message's turn.
_QOS0, _QOS2, _RETAINED = int(Flag.PUBLISHED_QOS0), int(Flag.PUBLISHED_QOS2), int(Flag.RETAINED)


class FanOut:
    """Delivers runs of messages. Nothing here waits: what a client has no room for is dropped, or read again later."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        touched: list[Outbound],
        flush: Callable[[], None],
        wall_clock: Callable[[], int],
        counters: Counters,
    ) -> None:
        """Join subscriptions and the list of clients that have something to be written, which ``flush`` empties."""
        self._subscriptions = subscriptions
        self.touched = touched
        self._flush = flush
        self._wall_clock = wall_clock
        self._counters = counters

    def run(  # noqa: PLR0917
        self,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        flags: Mapping[int, int],
        packets: Mapping[int, Publish],
        stream: int,
        base_seq: int,
        publisher: str | None,
    ) -> None:
        """Deliver the messages of one read that belong to the same streams, in order of receipt.

        Args:
            flags: index -> ``Flag`` bits, which say the QoS too.
            packets: index -> the packet, for messages with properties.
            stream: where the first of them is at ``base_seq``; ``message.NOWHERE`` if the log does not have them.
            publisher: client identifier, for subscriptions that do not want their own messages.
        """
        plans, seq = self._subscriptions.plans, base_seq
        plan_of = self._subscriptions.plan
        for index, (topic, payload) in enumerate(zip(topics, payloads, strict=True)):
            plan = plans.get(topic) or plan_of(topic)
            bits = flags.get(index, 0) if flags else 0
            qos = 1 if not bits else 0 if bits & _QOS0 else 2 if bits & _QOS2 else 1
            message = Message(topic, payload, qos, stream=stream, seq=seq)
            seq += 1
            if bits & _RETAINED or index in packets:
                message.retain = bool(bits & _RETAINED)
                if index in packets:
                    message.properties, message.expires_ns = split_expiry(packets[index].properties, self._wall_clock())
            if plan.grants:
                self._deliver(message, plan.grants, publisher)
            for group in plan.groups:
                group.offer(message)
        self.flush()

    def message(self, message: Message, publisher: str | None = None) -> None:
        """Deliver one message."""
        plan = self._subscriptions.plan(message.topic)
        self._deliver(message, plan.grants, publisher)
        for group in plan.groups:
            group.offer(message)
        self.flush()

    def flush(self) -> None:
        """Write what was gathered for each client, in one go."""
        self._flush()

    def _deliver(self, message: Message, grants: Sequence[Grant], publisher: str | None) -> None:
        # The inner loop of fan-out: a hundred subscribers are a hundred turns for every message.
        qos, plain, touched = message.qos, message.plain, self.touched
        sent = dropped = 0
        for grant in grants:
            outbound = grant.outbound
            if grant.no_local and outbound.client_id == publisher:
                continue  # [MQTT-3.8.3-3]
            granted = qos if qos < grant.qos else grant.qos
            if granted:
                outbound.offer(message, grant, granted)
            elif not outbound.live:
                dropped += 1
            elif plain and grant.kind != OWN:
                if not outbound.out:
                    touched.append(outbound)
                outbound.out.append(shared_parts(message, 0, grant.kind)[0])
                sent += 1
            else:
                outbound.send_at_most_once(message, grant)
        self._counters.deliveries_sent += sent
        self._counters.deliveries_dropped += dropped
