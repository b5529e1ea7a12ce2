"""Names of the node's internal streams, which configurations cannot use, and of its own topics."""

from __future__ import annotations

from typing import Final

OWN_PREFIX: Final = "weft-"
"""Prefix of the names of the node's own streams, in this release and later ones."""
SESSION_TOPICS_STREAM: Final = "weft-sessions-topics"
"""Stream of messages that only persistent sessions want: no ``from`` pattern matches their topics."""
SESSION_JOURNAL_STREAM: Final = "weft-sessions"
"""Stream of the changes to persistent sessions."""
UNROUTED_STREAM: Final = "unrouted"
"""Stream of messages whose topic no configured stream matches."""
FUNCTIONS_STREAM: Final = "weft-functions"
"""Stream of the positions and states of functions."""
HTTP_STREAM: Final = "weft-http"
"""Stream of the idempotency keys of requests."""
QUEUES_STREAM: Final = "weft-queues"
"""Stream of the messages in queues."""
QUEUES_STATE_STREAM: Final = "weft-queues-state"
"""Stream of the declarations of exchanges, queues and bindings, and of the settlements of messages."""
DOWN_STREAM: Final = "weft-down"
"""Stream of the messages that hubs published to the node's clients."""
DOWN_STATE_STREAM: Final = "weft-down-state"
"""Stream of what became of each message of a hub."""
RAW_PREFIX: Final = "weft-raw-"
"""Prefix of the names of streams with messages that only functions read: ``weft-raw-NAME`` for stream NAME."""
ERRORS_SUFFIX: Final = "-errors"
"""Suffix of the names of streams with records that functions rejected: ``NAME-errors`` for stream NAME."""
AMQP_LINKS_STREAM: Final = "weft-amqp-links"
"""Stream of the places of AMQP 1.0 links that outlive their connection."""
GAP_LEVEL: Final = "$gap"
"""Last level of the topic of a source's notices, below its name."""
WRITE_LEVEL: Final = "$write"
"""Level below the name of a source in the topics of messages that write a value."""
WRITTEN_LEVEL: Final = "$written"
"""Last level of the topic of records about such messages, below the name of the source."""
STATE_STREAMS: Final = frozenset(
    {
        SESSION_JOURNAL_STREAM,
        SESSION_TOPICS_STREAM,
        FUNCTIONS_STREAM,
        HTTP_STREAM,
        QUEUES_STREAM,
        QUEUES_STATE_STREAM,
        AMQP_LINKS_STREAM,
        DOWN_STATE_STREAM,
    }
)
"""Streams that commands and status pages do not show: they hold the state of clients, functions and queues."""
STREAMS_THAT_STAY: Final = STATE_STREAMS | {UNROUTED_STREAM, DOWN_STREAM}
"""Streams that never leave the node, under any configuration."""


def errors_stream(name: str) -> str:
    """Return the name of the stream of records that the functions of a stream rejected."""
    return name + ERRORS_SUFFIX


def raw_stream(name: str) -> str:
    """Return the name of the stream that holds the raw records of a stream with ``from`` and ``functions``."""
    return RAW_PREFIX + name
