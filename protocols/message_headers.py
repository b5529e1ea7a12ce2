"""Names of the headers in which records keep what a protocol says of a message, the same for every protocol.

docs/reference/message-headers.md has the table: what each of them is in MQTT, AMQP and HTTP. Three of them are set by
queries in Spark only. What only one protocol has
begins with that protocol's name and stands with its code (``mqtt.payload-format``).
"""

from __future__ import annotations

from typing import Final

from weft.protocols.columns import RESERVED_HEADER_PREFIXES

USER: Final = "weft.user."
"""Beginning of the stored names of headers whose own name begins like one of Weft's."""
CONTENT_TYPE: Final = "weft.content-type"
"""Text."""
CONTENT_ENCODING: Final = "weft.content-encoding"
"""Text: the payload is stored as it came, and this says how to unpack it."""
CORRELATION_ID: Final = "weft.correlation-id"
"""Bytes, or text or an integer where the protocol has that."""
EXPIRES: Final = "weft.expires"
"""Nanoseconds since 1970 after which no client gets the message."""
MESSAGE_ID: Final = "weft.message-id"
"""Text, bytes or an integer: an identifier that the publisher chose."""
PRIORITY: Final = "weft.priority"
"""Integer from 0; the higher, the sooner."""
REPLY_TO: Final = "weft.reply-to"
"""Text: topic, queue or address that an answer is to go to."""
SENT: Final = "weft.sent"
"""Nanoseconds since 1970: when the publisher made the message, as it says."""
SUBJECT: Final = "weft.subject"
"""Text: what the publisher says the message is about, or its type."""
FORKED_FROM: Final = "weft.forked-from"
"""Text, ``log id:number``: the record that this one was in a log that hubs refused as an old copy."""
LINEAGE: Final = "weft.lineage"
"""Text: the records that went into a row of a pipeline, JSON as Spark writes the column ``_from``."""
POSITION: Final = "weft.position"
"""Text, ``shard:offset:ordinal``: the source record that caused the row of a query, and the row's place behind it."""
POSITION_CHUNK: Final = "weft.position-chunk"
"""Text, ``number:crc``: the chunk of the source's log that holds the source record; on the last record of a batch."""
DELIVERY_MODE: Final = "amqp.delivery-mode"
"""Integer, as AMQP 0-9-1 has it: 2 for a message that is to survive a restart, 1 for one that need not."""
PERSISTENT: Final = (DELIVERY_MODE, 2)
SOURCE: Final = "weft.source"
"""Text, such as ``telemetry 120-150/17``: the records that went into one of an edge function, or into a row that one
rejected. Of each stream, of the same log, the first and the last number, and how many were used where they are fewer.
Several streams have commas between them."""
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
