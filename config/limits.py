"""Bounds of edge nodes and hubs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.units import Count, Duration, MiB, Section, Share, Size


class EdgeLimits(Section, frozen=True, kw_only=True):
    """Bounds on what clients can make the node hold. Beyond them the node slows clients down or refuses them."""

    user_share: Annotated[
        Annotated[Share, Meta(ge=0.01, le=1)],
        Meta(
            description="Part that one user may have of each total for all clients, here and in `state` and `queues`; "
            "without a user name, one address. `100%`: one user may have all of it."
        ),
    ] = 0.25
    connections: Annotated[Count, Meta(le=1_000_000, description="Maximum number of connected clients.")] = 16_384
    connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Maximum number of connections from one address (for IPv6: from one /64). Unset: "
            "only `connections` applies. Connections from this machine are exempt."
        ),
    ] = None
    connection_rate: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum rate of new connections from one address, per second. Connections from this "
            "machine are exempt.",
        ),
    ] = 200
    connection_burst: Annotated[
        Count,
        Meta(
            le=1_000_000, description="Number of connections that one address may open at once before the rate applies."
        ),
    ] = 2_000
    half_open: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of half-open connections: their TLS handshake, CONNECT or password check "
            "is not complete. Above it, the node closes the oldest.",
        ),
    ] = 1_024
    http_connections: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of idle connections to the status page, and of all those of one address. "
            "Above it, the address with most connections loses the one that has been idle longest. A connection "
            "without a request for 30 s is closed.",
        ),
    ] = 64
    request_bytes: Annotated[
        Size,
        Meta(
            ge=1024,
            le=8 * MiB,
            description="Maximum size of an HTTP body that may hold several messages, also unpacked. Longer ones: 413.",
        ),
    ] = field(default=1 * MiB, name="request")
    http_readers: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of HTTP clients that read events, by server-sent events or WebSocket. Further "
            "ones get 429.",
        ),
    ] = 256
    message_bytes: Annotated[
        Size,
        Meta(
            ge=1024,
            le=16 * MiB,
            description="Maximum size of an MQTT packet and of a message by AMQP or HTTP. A larger one ends the MQTT "
            "connection, AMQP 0-9-1 channel (311) or AMQP 1.0 link; HTTP clients get 413. Above 8MiB, raise "
            "`limits.record` of the hubs first. Once named `packet`.",
        ),
    ] = field(default=4 * MiB, name="message")
    connect_bytes: Annotated[
        Size,
        Meta(
            ge=1024,
            le=1 * MiB,
            description="Maximum size of a CONNECT packet, its will included: the node does not know its sender yet. "
            "A client that sends a larger one is disconnected.",
        ),
    ] = field(default=64 << 10, name="connect_packet")
    unfinished_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Maximum memory for packets of which a part has arrived, of all clients together. Data that "
            "they send ahead of their turn or password check count, too. A client that needs more is disconnected. "
            "The first 4 KiB of each client are free.",
        ),
    ] = field(default=128 * MiB, name="unfinished")
    topic_levels: Annotated[
        Count, Meta(le=32_768, description="Maximum number of levels in a topic or filter. Deeper ones are refused.")
    ] = 128
    connect_timeout_s: Annotated[
        Duration, Meta(ge=0.1, description="Maximum time from accepting a connection to admitting its client.")
    ] = field(default=10.0, name="connect_timeout")
    write_timeout_s: Annotated[
        Duration,
        Meta(ge=0.1, description="Maximum time that a client may leave sent data unread before it is disconnected."),
    ] = field(default=60.0, name="write_timeout")
    keep_alive_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=65_535,
            description="Maximum keep alive. An MQTT 5 client that asks for more, or for none, gets this one "
            "(Server Keep Alive). The default leaves the choice to clients.",
        ),
    ] = field(default=65_535.0, name="keep_alive")
    session_expiry_s: Annotated[
        Duration,
        Meta(
            description="Maximum time that a session is kept after its client has disconnected. Sessions of MQTT "
            "3 clients that are not clean get exactly this; MQTT 5 clients may ask for less."
        ),
    ] = field(default=7 * 86_400.0, name="session_expiry")
    send_queue_bytes: Annotated[
        Size,
        Meta(
            ge=16 << 10,
            description="Maximum number of bytes that wait for one client's socket, beyond one message. Above it, the "
            "node stops reading from the client and drops its live messages at QoS 0.",
        ),
    ] = field(default=1 * MiB, name="send_queue")
    sessions: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of MQTT sessions. Above it, the node deletes the session that has been "
            "without a client longest.",
        ),
    ] = 100_000
    subscriptions: Annotated[Count, Meta(le=100_000, description="Maximum number of subscriptions in one session.")] = (
        1000
    )
    subscriptions_total: Annotated[
        Count, Meta(le=10_000_000, description="Maximum number of subscriptions in all sessions together.")
    ] = 200_000
    match_cost: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of steps for finding a topic's subscribers that uncommon filters may cost, "
            "of all users together. Filters with more than 16 levels or more than two `+` are uncommon: each "
            "combination of `+` and names costs steps. Further ones are refused.",
        ),
    ] = 4_096
    inflight: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Maximum number of messages at QoS 1 and 2 that were sent to one client and not yet "
            "acknowledged by it.",
        ),
    ] = 100
    receive_maximum: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Maximum number of messages at QoS 1 and 2 that an MQTT 5 client may send before they are "
            "acknowledged. The node stops reading from a client that sends more until "
            "acknowledgements have gone out.",
        ),
    ] = 1000
    topic_alias_maximum: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(
            le=65_535, description="Maximum number of topic aliases of one MQTT 5 client in each direction; 0 for none."
        ),
    ] = 64
    session_queue_bytes: Annotated[
        Size,
        Meta(
            description="Maximum memory for live messages at QoS 1 and 2 of one client. Messages beyond it are "
            "read from the log later. With `unrouted: live`, a session that ends with its connection loses "
            "those whose topic no stream matches."
        ),
    ] = field(default=1 * MiB, name="session_queue")
    session_queues_bytes: Annotated[
        Size, Meta(description="Maximum memory for live messages at QoS 1 and 2 of all clients together.")
    ] = field(default=64 * MiB, name="session_queues")
    filter_bytes: Annotated[
        Size, Meta(ge=64, le=65_535, description="Maximum length of a subscription's filter. Longer ones are refused.")
    ] = field(default=65_535, name="filter")
    filters_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Maximum memory for the filters of one session: their bytes, and 400 bytes per level. "
            "Further subscriptions are refused.",
        ),
    ] = field(default=4 * MiB, name="filters_size")
    filters_total_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10, description="Maximum memory for the filters of all sessions together, counted in the same way."
        ),
    ] = field(default=256 * MiB, name="filters_total_size")
    wills_bytes: Annotated[
        Size,
        Meta(
            description="Maximum memory for the wills of all clients together: their content, and about 500 bytes "
            "each. Above it, clients with a will are refused."
        ),
    ] = field(default=16 * MiB, name="wills")
    retained: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of retained messages. Above it, messages on further topics are not retained.",
        ),
    ] = 50_000
    retained_bytes: Annotated[
        Size,
        Meta(
            description="Maximum memory for retained messages: topics, payloads, properties, and 850 bytes each. "
            "The default is enough for `retained` messages with 490 bytes of topic and payload on "
            "average."
        ),
    ] = field(default=64 * MiB, name="retained_size")
    authentications: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of clients that wait for their password check. Further clients get the "
            "reason code for a busy server.",
        ),
    ] = 4_096
    pending_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Maximum number of bytes that wait for the disk. Above it, the node stops reading from "
            "publishers.",
        ),
    ] = field(default=64 * MiB, name="pending")
    tail_bytes: Annotated[
        Size,
        Meta(
            description="Maximum memory for the newest records, from which links are served without reading the disk."
        ),
    ] = field(default=32 * MiB, name="tail")


class HubLimits(Section, frozen=True, kw_only=True):
    """Bounds on what edges and readers can make a hub node hold."""

    links: Annotated[Count, Meta(le=100_000, description="Maximum number of edges connected to this node.")] = 1024
    idle_connections: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of connections without a request under way. Above it, the address with most "
            "connections loses the one that has been idle longest. A connection without a request for 30 s is "
            "closed.",
        ),
    ] = 1024
    connections_per_address: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of connections of one address (for IPv6: of one /64), busy or idle, without "
            "open links. Above it, the address loses the one that has been idle longest.",
        ),
    ] = 1024
    links_per_token: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of links of one token to this node. The oldest ends when one more comes.",
        ),
    ] = 8
    window_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            le=256 * MiB,
            description="Maximum number of bytes, counted before compression, that one edge may send before the hub "
            "acknowledges them.",
        ),
    ] = field(default=8 * MiB, name="window")
    batch_bytes: Annotated[
        Size, Meta(ge=64 << 10, le=64 * MiB, description="Maximum size of a batch from an edge.")
    ] = field(default=20 * MiB, name="batch")
    record_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            le=64 * MiB,
            description="Maximum size of a record from an edge or a region: key, payload and headers. The stream of a "
            "longer one waits at the edge until this is raised. Edges whose `limits.message` is more need more.",
        ),
    ] = field(default=8 * MiB, name="record")
    pending_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Maximum number of bytes per shard that wait for the store. Above it, the node stops "
            "reading from links.",
        ),
    ] = field(default=64 * MiB, name="pending")
    response_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Maximum size of a response of the reading API; readers ask for the rest in further requests.",
        ),
    ] = field(default=8 * MiB, name="response")
    sharing_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Bytes of table files that a process sends to clients of Delta Sharing a second, all together; "
            "those of one tenant get half of them. Files of a bucket go from there.",
        ),
    ] = field(default=128 * MiB, name="sharing")
    sql_bytes: Annotated[
        Size,
        Meta(
            ge=64 * MiB,
            description="Memory of a query in SQL, of which two run at one time, each in a process of its own. A "
            "process has at most 512MiB beside it.",
        ),
    ] = field(default=256 * MiB, name="sql")
    lanes_per_edge: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of lanes of one edge that the hub keeps: one per stream and log of the edge. "
            "Above it, the hub refuses further streams of that edge.",
        ),
    ] = 1024
    lanes_per_tenant: Annotated[
        Count, Meta(le=10_000_000, description="Maximum number of lanes of one tenant in one shard.")
    ] = 50_000
    streams_per_tenant: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of streams of one tenant in one shard. Each has a table of its own. Above it, "
            "the hub refuses further streams of that tenant.",
        ),
    ] = 4000
    lanes: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of lanes in one shard. Each takes about 2 kB of memory in every process that "
            "has the shard.",
        ),
    ] = 100_000
    edge_topics_bytes: Annotated[
        Size, Meta(ge=1 << 10, description="Maximum size of the topic patterns of all streams of one edge together.")
    ] = field(default=256 << 10, name="edge_topics")
    edge_origins_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Maximum size of the origins of all streams of one edge together: names, versions and "
            "checksums of what made its records.",
        ),
    ] = field(default=4 * MiB, name="edge_origins")


FACT_NAME_CHARACTERS_MAX = 200
REASON_CHARACTERS_MAX = 512
