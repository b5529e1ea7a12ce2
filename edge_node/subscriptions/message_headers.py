"""Conversion of an MQTT 5.0 message's properties to headers of its record, and back.

User properties keep their names; one whose name begins with a prefix of Weft's own (``RESERVED_HEADER_PREFIXES``) is
stored as ``weft.user.<name>`` and goes out under its own name. The other properties have reserved names:

    weft.content-type     text (section 3.3.2.3.9)
    weft.reply-to         text: the response topic (3.3.2.3.5)
    weft.correlation-id   bytes (3.3.2.3.6); text and integers, which other protocols have, go out as text
    weft.expires          nanoseconds since 1970 after which no client gets it (3.3.2.3.3)
    mqtt.payload-format   0 or 1 (3.3.2.3.2)

MQTT has only text in user properties: values of other types, which other protocols have, go out as text.

Topic alias and subscription identifiers belong to one connection and are not stored.
"""

from __future__ import annotations

from typing import Any

from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs
from weft.protocols.columns import RESERVED_HEADER_PREFIXES, HeaderValue, header_text
from weft.protocols.message_headers import CONTENT_TYPE, CORRELATION_ID, EXPIRES, REPLY_TO, USER, stored_name
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties

PAYLOAD_FORMAT = "mqtt.payload-format"

USER_PROPERTIES_MAX = HEADER_PAIRS_MAX - 6
"""Maximum number of user properties of one message: with the node's own headers a record has no room for more."""
_SECOND_NS = 1_000_000_000
_EXPIRES_NS_MAX = (1 << 63) - 1
_TEXT_BYTES_MAX = 65_535
"""Longest text of MQTT (1.5.4)."""


class TooManyProperties(ValueError):
    """A message has more user properties than a record has room for: refuse the message, because it cannot be
    stored."""


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
    pairs: list[tuple[str, HeaderValue]] = [(stored_name(name), value) for name, value in user]
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, properties.content_type))
    if properties.response_topic is not None:
        pairs.append((REPLY_TO, properties.response_topic))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_ID, properties.correlation_data))
    if properties.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, properties.payload_format_indicator))
    if properties.message_expiry_interval is not None:
        pairs.append((EXPIRES, min(now_ns + properties.message_expiry_interval * _SECOND_NS, _EXPIRES_NS_MAX)))
    return tuple(pairs)


def from_headers(headers: HeaderPairs) -> tuple[Properties, int]:
    """Return the properties of a stored message without its expiry, and the time at which it expires.

    Unknown reserved names (of a later release), and values that do not fit them (in a record of another protocol), are
    skipped.

    Returns:
        ``NO_PROPERTIES`` when there are none; nanoseconds since 1970, 0 for a message that never expires.
    """
    if not headers:
        return NO_PROPERTIES, 0
    user: list[tuple[str, str]] = []
    fields: dict[str, Any] = {}
    expires_ns = 0
    for name, value in headers:
        if not name.startswith(RESERVED_HEADER_PREFIXES) or name.startswith(USER):
            text = value if type(value) is str else _as_text(value)
            if text is not None:
                user.append((name.removeprefix(USER), text))
        elif name == CONTENT_TYPE and isinstance(value, str):
            fields["content_type"] = value
        elif name == REPLY_TO and isinstance(value, str):
            fields["response_topic"] = value
        elif name == CORRELATION_ID and isinstance(value, bytes | str | int) and not isinstance(value, bool):
            fields["correlation_data"] = value if isinstance(value, bytes) else str(value).encode()
        elif name == PAYLOAD_FORMAT and type(value) is int and value in (0, 1):
            fields["payload_format_indicator"] = value
        elif name == EXPIRES and type(value) is int and value > 0:
            expires_ns = value
    if user:
        fields["user_properties"] = tuple(user)
    return (Properties(**fields) if fields else NO_PROPERTIES), expires_ns


def _as_text(value: HeaderValue) -> str | None:
    """Return the value of a user property; None for a value whose text is too long for MQTT."""
    text = header_text(value) or ""
    return text if len(text) <= _TEXT_BYTES_MAX else None
