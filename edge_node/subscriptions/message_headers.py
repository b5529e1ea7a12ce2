"""Conversion of an MQTT 5.0 message's properties to headers of its record, and back.

User properties keep their names; one whose name would pass for one of the node's own is stored as
``mqtt.user.<name>``. The other properties have reserved names:

    mqtt.content-type      text (section 3.3.2.3.9)
    mqtt.response-topic    text (3.3.2.3.5)
    mqtt.correlation-data  base64 (3.3.2.3.6)
    mqtt.payload-format    "0" or "1" (3.3.2.3.2)
    mqtt.expires           nanoseconds since 1970 after which no client gets it (3.3.2.3.3)

Topic alias and subscription identifiers belong to one connection and are not stored.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties

RESERVED = "mqtt."
USER = "mqtt.user."
CONTENT_TYPE = "mqtt.content-type"
RESPONSE_TOPIC = "mqtt.response-topic"
CORRELATION_DATA = "mqtt.correlation-data"
PAYLOAD_FORMAT = "mqtt.payload-format"
EXPIRES = "mqtt.expires"

USER_PROPERTIES_MAX = HEADER_PAIRS_MAX - 6
"""Most user properties of one message: with the node's own headers a record has no room for more."""
_SECOND_NS = 1_000_000_000
_EXPIRES_NS_MAX = (1 << 63) - 1


class TooManyProperties(ValueError):
    """A message has more user properties than a record has room for: refuse it, it cannot be stored."""


def to_headers(properties: Properties, now_ns: int) -> HeaderPairs:
    """Return the headers of a message that was published at ``now_ns``; empty if it has no properties.

    Raises:
        TooManyProperties: more than ``USER_PROPERTIES_MAX`` user properties.
    """
    if properties is NO_PROPERTIES:
        return ()
    user = properties.user_properties
    if len(user) > USER_PROPERTIES_MAX:
        raise TooManyProperties(f"{len(user)} user properties; a message may have {USER_PROPERTIES_MAX}")
    pairs = [(USER + name if name.startswith(RESERVED) else name, value) for name, value in user]
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, properties.content_type))
    if properties.response_topic is not None:
        pairs.append((RESPONSE_TOPIC, properties.response_topic))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_DATA, base64.b64encode(properties.correlation_data).decode()))
    if properties.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, str(properties.payload_format_indicator)))
    if properties.message_expiry_interval is not None:
        pairs.append((EXPIRES, str(now_ns + properties.message_expiry_interval * _SECOND_NS)))
    return tuple(pairs)


def from_headers(headers: HeaderPairs) -> tuple[Properties, int]:
    """Return the properties of a stored message without its expiry, and the time at which it expires.

    Reserved names that the node does not know (a later release's), and values that do not fit them (a record that
    did not come by MQTT), are passed over.

    Returns:
        ``NO_PROPERTIES`` when there are none; nanoseconds since 1970, 0 for a message that never expires.
    """
    if not headers:
        return NO_PROPERTIES, 0
    user: list[tuple[str, str]] = []
    fields: dict[str, Any] = {}
    expires_ns = 0
    for name, value in headers:
        if not name.startswith(RESERVED):
            user.append((name, value))
        elif name.startswith(USER):
            user.append((name.removeprefix(USER), value))
        elif name == CONTENT_TYPE:
            fields["content_type"] = value
        elif name == RESPONSE_TOPIC:
            fields["response_topic"] = value
        elif name == CORRELATION_DATA:
            fields["correlation_data"] = _from_base64(value)
        elif name == PAYLOAD_FORMAT and value in ("0", "1"):
            fields["payload_format_indicator"] = int(value)
        elif name == EXPIRES:
            expires_ns = _from_decimal(value)
    if user:
        fields["user_properties"] = tuple(user)
    return (Properties(**fields) if fields else NO_PROPERTIES), expires_ns


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _from_decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return 0
    return min(int(text), _EXPIRES_NS_MAX)
