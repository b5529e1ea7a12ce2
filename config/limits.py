"""Bounds of edge nodes and hubs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.values import Count, Duration, MiB, Section, Size


class EdgeLimits(Section, frozen=True, kw_only=True):
    """Bounds on what clients can make the node hold. Past them it slows a client down or refuses."""

    connections: Annotated[Count, Meta(le=1_000_000, description="Most MQTT clients connected at a time.")] = 16_384
    connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Most MQTT connections of one address (of IPv6: of a /64); without it `connections` is the "
            "only bound. This machine itself is not held to it."
        ),
    ] = None
    connection_rate: Annotated[
        Count,
        Meta(
            le=100_000,
            description="New MQTT connections a second from one address. This machine itself is not held to it.",
        ),
    ] = 200
    connection_burst: Annotated[
        Count,
        Meta(le=1_000_000, description="MQTT connections that one address may make at once before the rate holds."),
    ] = 2_000
    half_open: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Most connections whose client is not let in yet: TLS handshake, CONNECT or password to come. "
            "Past it the one that has taken longest is closed.",
        ),
    ] = 1_024
    packet_bytes: Annotated[
        Size, Meta(ge=1024, le=16 * MiB, description="Longest MQTT packet. A longer one closes its connection.")
    ] = field(default=1 * MiB, name="packet")
    topic_levels: Annotated[
        Count, Meta(le=32_768, description="Most levels of a topic or filter. Deeper ones are refused.")
    ] = 128
    connect_timeout_s: Annotated[
        Duration, Meta(ge=0.1, description="How long a new connection may take until its client is let in.")
    ] = field(default=10.0, name="connect_timeout")
    write_timeout_s: Annotated[
        Duration, Meta(ge=0.1, description="How long a client may leave unread what it was sent.")
    ] = field(default=60.0, name="write_timeout")
    keep_alive_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=65_535,
            description="Longest keep alive. An MQTT 5 client that asks for more, or for none, is told to use this "
            "one; the default leaves the choice to clients.",
        ),
    ] = field(default=65_535.0, name="keep_alive")
    session_expiry_s: Annotated[
        Duration,
        Meta(
            description="Longest time that a session is kept after its client has gone. Clients of MQTT 3 get it with "
            "every session that is not clean, others may ask for less."
        ),
    ] = field(default=7 * 86_400.0, name="session_expiry")
    send_queue_bytes: Annotated[
        Size,
        Meta(
            ge=16 << 10,
            description="Most bytes written to one client that its socket has not taken. Past it the client is not "
            "read and misses live messages at QoS 0.",
        ),
    ] = field(default=1 * MiB, name="send_queue")
    sessions: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Most MQTT sessions kept. Beyond it the one longest without a client is forgotten.",
        ),
    ] = 100_000
    subscriptions: Annotated[Count, Meta(le=100_000, description="Most subscriptions of one session.")] = 1000
    subscriptions_total: Annotated[
        Count, Meta(le=10_000_000, description="Most subscriptions of all sessions together.")
    ] = 200_000
    inflight: Annotated[
        Count,
        Meta(le=65_535, description="Most messages at QoS 1 and 2 sent to one client and not acknowledged by it."),
    ] = 100
    receive_maximum: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Most messages at QoS 1 and 2 that an MQTT 5 client may send ahead of their acknowledgements. "
            "A client that sends more is not read until acknowledgements have gone out.",
        ),
    ] = 1000
    topic_alias_maximum: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(le=65_535, description="Most topic aliases of one MQTT 5 client in each direction; 0 for none."),
    ] = 64
    session_queue_bytes: Annotated[
        Size,
        Meta(
            description="Most bytes of live messages at QoS 1 and 2 kept for one client. Messages beyond it are read "
            "from the log later. A session that ends with its connection loses messages whose topic no stream matches."
        ),
    ] = field(default=1 * MiB, name="session_queue")
    session_queues_bytes: Annotated[
        Size, Meta(description="Most bytes of live messages at QoS 1 and 2 kept for all clients together.")
    ] = field(default=64 * MiB, name="session_queues")
    filter_bytes: Annotated[
        Size, Meta(ge=64, le=65_535, description="Longest filter of a subscription. Longer ones are refused.")
    ] = field(default=65_535, name="filter")
    filters_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Most memory of the filters of one session: their bytes, and 400 for each level. Further "
            "subscriptions are refused.",
        ),
    ] = field(default=4 * MiB, name="filters_size")
    filters_total_bytes: Annotated[Size, Meta(ge=64 << 10, description="The same of all sessions together.")] = field(
        default=256 * MiB, name="filters_total_size"
    )
    wills_bytes: Annotated[
        Size,
        Meta(
            description="Most memory of the wills of all clients together, about 500 bytes each and what they say. "
            "Clients whose will has no room are refused."
        ),
    ] = field(default=16 * MiB, name="wills")
    retained: Annotated[
        Count,
        Meta(le=10_000_000, description="Most topics with a retained message. Beyond it further topics get none."),
    ] = 50_000
    retained_bytes: Annotated[
        Size,
        Meta(
            description="Most memory of retained messages together: topics, payloads, properties, and 850 bytes for "
            "each. The default holds as many as `retained` says if topic and payload are 490 bytes on average."
        ),
    ] = field(default=64 * MiB, name="retained_size")
    authentications: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Most passwords that wait to be checked. Further clients are told that the node is busy.",
        ),
    ] = 4_096
    pending_bytes: Annotated[
        Size, Meta(ge=1 * MiB, description="Most bytes that wait for the disk. Past it publishers are not read.")
    ] = field(default=64 * MiB, name="pending")
    tail_bytes: Annotated[
        Size, Meta(description="Most bytes of newest records kept in memory, so that links need not read the disk.")
    ] = field(default=32 * MiB, name="tail")


class State(Section, frozen=True, kw_only=True):
    """What is kept of MQTT clients across restarts. Changes go into the log (the *journal*), then into a database."""

    save_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often the journal is folded into the database, so that the log can delete it. More "
            "spares flash and makes a start after a crash read more.",
        ),
    ] = field(default=5.0, name="save_interval")
    save_bytes: Annotated[
        Size, Meta(ge=64 << 10, description="Size of the journal at which that is done without waiting longer.")
    ] = field(default=4 * MiB, name="save_size")
    journal_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Most journal that is not in the database yet, which happens when that cannot be written. "
            "Past it changes of sessions are refused: clients are not let in or subscribed, and what persistent "
            "sessions publish is not acknowledged.",
        ),
    ] = field(default=64 * MiB, name="journal")
    positions_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often it is noted how far connected sessions have read. What they acknowledged since, "
            "they may get again after a crash.",
        ),
    ] = field(default=1.0, name="positions_interval")
    resent_window: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Newest messages of one session by which one that is sent again is recognised. More than "
            "clients leave unacknowledged: 20 with Paho and Mosquitto.",
        ),
    ] = 1_000
    resent_total: Annotated[
        Count,
        Meta(
            le=100_000_000,
            description="The same of all sessions together: a few bytes each where devices send many at a time, and "
            "some 250 where each comes alone. Beyond it those of the sessions that published longest ago are "
            "forgotten.",
        ),
    ] = 200_000
    backlog_buffer_bytes: Annotated[
        Size,
        Meta(ge=64 << 10, description="Most memory of records that were read again for sessions that are behind."),
    ] = field(default=16 * MiB, name="backlog_buffer")
    backlog_page_bytes: Annotated[
        Size, Meta(ge=1024, le=64 * MiB, description="Most bytes that are read at a time for one session.")
    ] = field(default=256 << 10, name="backlog_page")
    backlog_page_records: Annotated[
        Count, Meta(le=100_000, description="Most messages that are read at a time for one session.")
    ] = 1_000
    backlog_reads: Annotated[
        Count, Meta(le=64, description="Reads of the disk at a time for sessions that are behind, about 1MiB each.")
    ] = 2
    topics_log_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="How much the log may grow before messages that no stream matches, of which absent sessions "
            "have a copy, may be deleted although a session has not had them. At most a quarter of disk.budget is "
            "used. When it is left out, 1 GiB or that quarter, whichever is less.",
        ),
    ] = field(default=None, name="topics_log")


class HubLimits(Section, frozen=True, kw_only=True):
    """Bounds on what edges and readers can make a hub node hold."""

    links: Annotated[Count, Meta(le=100_000, description="Most edges connected to this node at a time.")] = 1024
    window_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            le=256 * MiB,
            description="Most bytes that one edge may send ahead of the hub's acknowledgement.",
        ),
    ] = field(default=8 * MiB, name="window")
    batch_bytes: Annotated[Size, Meta(ge=64 << 10, le=64 * MiB, description="Longest batch taken from an edge.")] = (
        field(default=16 * MiB, name="batch")
    )
    pending_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Most bytes per shard that wait for the store. Past it the node stops reading from links.",
        ),
    ] = field(default=64 * MiB, name="pending")
    response_bytes: Annotated[
        Size, Meta(ge=64 << 10, description="Longest answer of the reading API; readers ask again for more.")
    ] = field(default=8 * MiB, name="response")
