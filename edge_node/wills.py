"""Wills: what is published for clients that go without saying goodbye (MQTT 5.0 sections 3.1.2.5, 3.1.3.2)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from edge_node.broker_ports import NEVER_EXPIRES
from edge_node.counters import Counters
from edge_node.session import Session
from protocols.mqtt.packets import Publish
from protocols.mqtt.properties import NO_PROPERTIES
from storage.segment_log import LogError

log = logging.getLogger(__name__)


class Wills:
    """Publishes wills when they are due. Who waits for that time is ``Sessions``."""

    def __init__(self, publish: Callable[[Publish, str], None], counters: Counters) -> None:
        """Join the broker.

        Args:
            publish: takes a packet and the client identifier of its publisher. Raises LogError.
        """
        self._publish = publish
        self._counters = counters

    def due_at(self, session: Session, now: float, *, publish: bool = True) -> float | None:
        """When the will of a client that has just gone is due, by the loop's clock; None when there is none (left).

        Without a delay it is published here and now [MQTT-3.1.2-8]. The end of the session, if that comes first, is
        minded by whoever ends it.
        """
        will = session.will
        if will is None:
            return None
        delay_s = will.properties.will_delay_interval or 0
        if session.expiry_s != NEVER_EXPIRES:
            delay_s = min(delay_s, session.expiry_s)
        if delay_s or not publish:
            return now + delay_s
        self.publish(session)
        return None

    def publish(self, session: Session) -> None:
        """Publish a session's will, once [MQTT-3.1.2-10]."""
        will, session.will = session.will, None
        if will is None:
            return
        properties = msgspec.structs.replace(will.properties, will_delay_interval=None)
        if properties == NO_PROPERTIES:
            properties = NO_PROPERTIES
        packet = Publish(will.topic, will.payload, will.qos, 0, will.retain, properties=properties)
        identity = session.outbound.identity
        if identity is not None and not identity.may_publish(will.topic):  # the rules have changed since CONNECT
            self._counters.publishes_denied += 1
            return
        try:
            self._publish(packet, session.client_id)
            self._counters.wills_published += 1
        except LogError as error:
            log.warning("the will of MQTT client %r could not be stored: %s", session.client_id, error)
