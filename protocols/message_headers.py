"""Names of the headers for a message's properties, the same for every protocol.

docs/reference/message-headers.md has the table of their counterparts in MQTT, AMQP and HTTP. Only queries in Spark set
three of them. A property of a single protocol begins with that protocol's name and is defined in its code
(``mqtt.payload-format``).
"""

from __future__ import annotations

from typing import Final

from weft.protocols.batch import RESERVED_HEADER_PREFIXES

USER: Final = "weft.user."
"""Prefix of stored headers whose own name begins like one of Weft's."""
CONTENT_TYPE: Final = "weft.content-type"
"""Text."""
CONTENT_ENCODING: Final = "weft.content-encoding"
"""Text: encoding of the payload, which is stored as received."""
CORRELATION_ID: Final = "weft.correlation-id"
"""Bytes, or text or an integer if the protocol has these."""
MESSAGE_NUMBER: Final = "weft.message"
"""Number of a hub's message."""
EXPIRES: Final = "weft.expires"
"""Nanoseconds since 1970 after which no client gets the message."""
MESSAGE_ID: Final = "weft.message-id"
"""Text, bytes or an integer: an identifier of the publisher's choice."""
PRIORITY: Final = "weft.priority"
"""Integer from 0; the higher, the sooner."""
REASON: Final = "weft.reason"
"""Text: reason why a record is in a stream of errors."""
REPLY_TO: Final = "weft.reply-to"
"""Text: topic, queue or address for an answer."""
SENDER: Final = "weft.sender"
"""Text: client identifier of the publisher of a dead letter, `source:NAME` for a message of a source."""
SENT: Final = "weft.sent"
"""Nanoseconds since 1970: time at which the publisher made the message, by its own account."""
SUBJECT: Final = "weft.subject"
"""Text: subject or type of the message, by the publisher."""
FORKED_FROM: Final = "weft.forked-from"
"""Text, ``log id:number``: the record's earlier identity in a log that hubs refused as an old copy."""
LINEAGE: Final = "weft.lineage"
"""Text: the records that went into a row of a pipeline, JSON as Spark writes the column ``_from``."""
POSITION: Final = "weft.position"
"""Text, ``shard:offset:ordinal``: the source record that caused the row of a query, and the row's number among its
rows."""
POSITION_CHUNK: Final = "weft.position-chunk"
"""Text, ``number:crc``: the chunk of the source's log that holds the source record; on the last record of a batch."""
POSITION_BEHIND: Final = "weft.position-behind"
"""Text, ``log:end,...``: ends of the source shard's lanes of other spreads, whose rows all come before the record; on
the last record of a batch."""
DELIVERY_MODE: Final = "amqp.delivery-mode"
"""Integer, as in AMQP 0-9-1: 2 for a message that must survive a restart, 1 for one that need not."""
PERSISTENT: Final = (DELIVERY_MODE, 2)
SOURCE: Final = "weft.source"
"""Text, such as ``telemetry 120-150/17``: the records that went into a record of an edge function, or into a row that
it rejected. For each stream of the same log: the first and the last number, and the count of used records if it is
lower. Commas separate streams."""
TRACE: Final = "weft.trace"
"""Text: the edge node's span of a traced message, in the form of ``traceparent``. The hub's spans are its children."""
USER_ID: Final = "weft.user-id"
"""Text: user name of the publisher, as authenticated or checked against it."""


def stored_name(name: str) -> str:
    """Return the name under which a publisher's own header is stored."""
    return USER + name if name.startswith(RESERVED_HEADER_PREFIXES) else name


def own_name(name: str) -> str | None:
    """Return the name that the publisher gave to a stored header; None for a header of Weft's own."""
    if not name.startswith(RESERVED_HEADER_PREFIXES):
        return name
    return name[len(USER) :] if name.startswith(USER) else None
