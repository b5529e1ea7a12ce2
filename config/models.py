"""The settings of an edge node and of a hub, as frozen typed models: one place for name, default, unit and meaning.

A value's unit stands in its field name (``_bytes``, ``_s``); in YAML people write the unit with the value (``64MiB``,
``10s``), so there the key goes without it. Paths are absolute once loaded. Secrets are never values here, only the
files that hold them. ``config/load.py`` reads the descriptions, units and bounds from here, and so do the JSON schema
and the reference page.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

Duration = Annotated[float, Meta(extra_json_schema={"x-unit": "duration"})]
"""Seconds."""
Size = Annotated[int, Meta(extra_json_schema={"x-unit": "size"})]
"""Bytes."""
Count = Annotated[int, Meta(ge=1)]
Bind = Annotated[str, Meta(extra_json_schema={"x-unit": "bind"})]
"""``host:port``; ``config.units.parse_bind`` takes it apart."""
Path = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "path"})]
Store = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "store"})]
Filters = Annotated[tuple[str, ...], Meta(min_length=1, max_length=256, extra_json_schema={"x-unit": "filters"})]
Urls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "urls"})]
Listen = Annotated[str, Meta(extra_json_schema={"x-unit": "listen"})]
"""``host:port`` or ``unix:/path``; ``config.units.parse_listen`` takes it apart."""
Networks = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "networks"})]
Anonymous = Literal["loopback", "allowed_beyond_loopback"]
RefusedPublish = Literal["close", "acknowledge"]
MqttAnonymous = Literal["never", "loopback", "allowed_beyond_loopback"]

MiB = 1 << 20


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every section has in common: immutable, and unknown keys are errors."""


class Tls(_Section, frozen=True, kw_only=True):
    """TLS of a listener. The files are read again when they change; connections stay."""

    certificate: Annotated[
        Path, Meta(description="PEM file of the listener's certificate, followed by the chain up to its authority.")
    ]
    key: Annotated[
        Path, Meta(description="PEM file of the certificate's key, not encrypted. Readable by the node's user alone.")
    ]
    client_ca: Annotated[
        Path | None,
        Meta(
            description="PEM file of the authorities whose client certificates are taken. The certificate's common "
            "name is then the user name, and no password is asked for. Without it clients are asked for none."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["required", "optional"],
        Meta(description="With `client_ca`: whether clients without a certificate may come in by another way."),
    ] = "required"


class WebSocket(_Section, frozen=True, kw_only=True):
    """MQTT over WebSocket, for browsers and for networks that let nothing but HTTP through."""

    path: Annotated[str, Meta(description="Path of the URL that clients connect to.")] = "/mqtt"
    origins: Annotated[
        tuple[str, ...] | None,
        Meta(
            description='Web pages that may connect, such as `https://dash.example.com`; `"*"` lets all. Left out: '
            "pages of the listener's own host. Clients that are no browsers are not asked."
        ),
    ] = None


class ProxyProtocol(_Section, frozen=True, kw_only=True):
    """Connections come from a proxy that says who the client is (PROXY protocol, version 2)."""

    trusted: Annotated[
        Networks,
        Meta(
            description="Address or network, or a list of them, that the proxy connects from: `192.0.2.0/28`. "
            "Everybody else is refused, and so is a connection that does not begin with a PROXY header."
        ),
    ]


class MqttListener(_Section, frozen=True, kw_only=True):
    """Where MQTT clients (3.1, 3.1.1 and 5.0) connect. With `tls` it is MQTTS, with `websocket` MQTT over WebSocket."""

    bind: Annotated[
        Listen,
        Meta(
            description="Address and port that MQTT clients connect to, or `unix:` and the path of a unix socket, "
            "which the file's owner and group may use. Port 0 takes any free port."
        ),
    ] = "127.0.0.1:1883"
    anonymous: Annotated[
        MqttAnonymous,
        Meta(
            description="Who may connect without a name: `never` nobody, `loopback` clients on this machine, "
            "`allowed_beyond_loopback` everyone who reaches the port. Behind a proxy that does not say who the client "
            "is, everyone seems to be where the proxy is."
        ),
    ] = "loopback"
    tls: Annotated[Tls | None, Meta(description="TLS; plain TCP without it. Required for `mqtts` and `wss`.")] = None
    websocket: Annotated[
        WebSocket | None,
        Meta(description="WebSocket; without it MQTT itself. Listeners called `ws` or `wss` have it anyway."),
    ] = None
    proxy_protocol: Annotated[
        ProxyProtocol | None, Meta(description="A proxy in front of the listener; without it clients connect directly.")
    ] = None


class Auth(_Section, frozen=True, kw_only=True):
    """Who may connect, and what clients may do. Changed files are read again; who is no user any more is let go."""

    users_file: Annotated[
        Path | None,
        Meta(
            description="File of user names and password hashes that `weft user add` writes. Without it no password "
            "is right."
        ),
    ] = None
    acl_file: Annotated[
        Path | None,
        Meta(
            description="File of who may read and write which topics, in the format of Mosquitto's: `user`, `topic` "
            "and `pattern` lines with `read`, `write`, `readwrite` or `deny`. What it does not grant is refused. "
            "Without it everyone who is let in may do everything."
        ),
    ] = None
    refused_publish: Annotated[
        RefusedPublish,
        Meta(
            description="What becomes of a QoS 1 or 2 publish that is refused, by access rules or for its levels, of a "
            "client of MQTT 3.1.1, which has no word for no: `close` ends the connection, so that nothing is "
            "acknowledged that is not kept; `acknowledge` drops the message and counts it, for bridges and clients "
            "with a queue, which would send the same message for ever. MQTT 5.0 clients get the reason code."
        ),
    ] = "close"


class Http(_Section, frozen=True, kw_only=True):
    """The node's own pages: status at `/`, its JSON at `/status`, Prometheus metrics at `/metrics`."""

    bind: Annotated[Bind, Meta(description="Address and port of the status page. Port 0 takes any free port.")] = (
        "127.0.0.1:8080"
    )
    anonymous: Annotated[
        Anonymous,
        Meta(
            description="Who may read the pages (names and counts, no messages): `loopback` only this machine, "
            "`allowed_beyond_loopback` everyone."
        ),
    ] = "loopback"


class Disk(_Section, frozen=True, kw_only=True):
    """How much of the disk the node's log may take, and how it writes."""

    budget_bytes: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            description="Most disk that the log takes, to the byte. When it is used up, records that are safe at a hub "
            "go first; then the oldest of streams with `when_full: drop_oldest`, each loss recorded; and then the log "
            "refuses: devices get no acknowledgement and send again.",
        ),
    ] = field(default=16 << 30, name="budget")
    segment_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            le=1 << 30,
            description="Size of one file of the log: what is freed at a time. At most a quarter of the budget.",
        ),
    ] = field(default=64 * MiB, name="segment")
    low_water_bytes: Annotated[
        Size | None,
        Meta(description="Warn when less than this is left for records. A tenth of the budget when it is left out."),
    ] = field(default=None, name="low_water")
    compression: Annotated[
        Literal["zstd", "none"],
        Meta(description="How batches of 4 KiB and more are stored. `none` spares the processor and wears flash more."),
    ] = "zstd"
    compression_level: Annotated[
        int, Meta(ge=1, le=19, description="zstd level of the log: higher is smaller and slower.")
    ] = 1
    card_endurance_bytes: Annotated[
        Size | None,
        Meta(
            description="How many bytes the SD card or eMMC takes in its life, as its maker says (TBW). Status and "
            "metrics then say how long that lasts at the present rate."
        ),
    ] = field(default=None, name="card_endurance")


class Retain(_Section, frozen=True, kw_only=True):
    """How long a stream's records stay on the node."""

    time_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(
            description="Records older than this go: at the latest when they are half as old again. Those that no hub "
            "has by then are recorded as lost (`expired`). Without it age does not matter.",
        ),
    ] = field(default=None, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Most of the log that the stream may take. What becomes of a stream that is full is said by "
            "`when_full`. Without it only the disk's budget counts.",
        ),
    ] = field(default=None, name="size")


class Stream(_Section, frozen=True, kw_only=True):
    """One stream: which topics it takes. Devices are keys within it, so streams are few."""

    from_: Annotated[
        Filters,
        Meta(
            description="MQTT filter or list of filters whose messages this stream keeps. Named levels such as "
            '`"plant/{line}/+/telemetry"` become columns of the table. A topic that several streams '
            "match is kept in each of them."
        ),
    ] = field(name="from")
    resent: Annotated[
        Literal["flag", "suppress"],
        Meta(
            description="What becomes of a message at QoS 1 that a device with a persistent session sends again "
            "although it is in the log already: `flag` keeps it, marked as sent again, `suppress` acknowledges it only."
        ),
    ] = "flag"
    when_full: Annotated[
        Literal["refuse", "drop_oldest"],
        Meta(
            description="When there is no room and no hub has the oldest records: `refuse` acknowledges nothing more, "
            "so that devices keep their messages and send again; `drop_oldest` gives up the oldest records of this "
            "stream and records which (`budget`)."
        ),
    ] = "refuse"
    retain: Annotated[Retain, Meta(description="How long records stay; without it, until their place is needed.")] = (
        Retain()
    )
    replicate: Annotated[
        bool,
        Meta(
            description="`false` keeps the stream on this node: no link carries it, and `retain` is what ends its "
            "records."
        ),
    ] = True


class Link(_Section, frozen=True, kw_only=True):
    """A link carries streams to a hub."""

    to: Annotated[
        Urls,
        Meta(description="URL or list of URLs of one hub's nodes, tried in turn: `https://hub.example.com`."),
    ]
    token_file: Annotated[
        Path | None,
        Meta(description="File that holds the token for the hub, on one line. Readable by the node's user alone."),
    ] = None
    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Which streams go over this link. All of them when it is left out."),
    ] = None
    compression_level: Annotated[
        int, Meta(ge=1, le=19, description="zstd level of the connection: higher is smaller and slower.")
    ] = 3
    window_bytes: Annotated[
        Size, Meta(ge=64 << 10, le=256 * MiB, description="Most bytes sent and not yet acknowledged by the hub.")
    ] = field(default=8 * MiB, name="window")
    retry_min_s: Annotated[
        Duration,
        Meta(ge=0.01, description="Shortest wait before a lost link is tried again. Waits double, with jitter."),
    ] = field(default=0.5, name="retry_min")
    retry_max_s: Annotated[Duration, Meta(ge=0.01, description="Longest wait before a lost link is tried again.")] = (
        field(default=30.0, name="retry_max")
    )


class EdgeLimits(_Section, frozen=True, kw_only=True):
    """Bounds on what clients can make the node hold. Past them it slows a client down or refuses."""

    connections: Annotated[Count, Meta(le=1_000_000, description="Most MQTT connections at a time.")] = 16_384
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
            description="Most messages at QoS 1 and 2 that an MQTT 5 client may send ahead of their acknowledgements.",
        ),
    ] = 1000
    topic_alias_maximum: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(le=65_535, description="Most topic aliases of one MQTT 5 client in each direction; 0 for none."),
    ] = 64
    session_queue_bytes: Annotated[
        Size,
        Meta(
            description="Most bytes of live messages at QoS 1 and 2 kept for one client. What a persistent session has "
            "no room for is read from the log again; other clients lose it."
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


class State(_Section, frozen=True, kw_only=True):
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
        Size,
        Meta(
            ge=1 * MiB,
            description="How much the log may grow before messages that belong to no stream, and are kept for absent "
            "sessions alone, may be deleted although a session has not had them. At most a quarter of disk.budget is "
            "used.",
        ),
    ] = field(default=1 << 30, name="topics_log")


class EdgeConfig(_Section, frozen=True, kw_only=True):
    """An edge node: takes messages from devices, keeps them in a local log, and sends them to hubs."""

    node: Annotated[
        str, Meta(description="The node's name, unique within its tenant. It is part of every record's identity.")
    ]
    tenant: Annotated[str, Meta(description="Who the data belongs to.")] = "default"
    data_dir: Annotated[
        Path, Meta(description="Folder of the node's log. Made when it is missing; one process at a time may use it.")
    ]
    listeners: Annotated[
        dict[str, MqttListener | None],
        Meta(
            description="What devices connect to, by name; `null` for none. `mqtts`, `ws` and `wss` are what they are "
            "called for; other names say with their settings what they are.",
            max_length=64,
        ),
    ] = field(default_factory=lambda: {"mqtt": MqttListener()})
    auth: Auth = Auth()
    http: Annotated[Http | None, Meta(description="The status page; `null` for none.")] = Http()
    disk: Disk = Disk()
    commit_interval_s: Annotated[
        Duration,
        Meta(
            le=60,
            description="Longest time that a message waits for others to share one write to the disk. `0s` writes "
            "at once; more spares flash and makes every acknowledgement wait that long.",
        ),
    ] = field(default=0.0, name="commit_interval")
    streams: Annotated[dict[str, Stream], Meta(description="The streams by name.", max_length=1024)] = field(
        default_factory=dict
    )
    links: Annotated[dict[str, Link], Meta(description="The links by name.", max_length=64)] = field(
        default_factory=dict
    )
    state: State = State()
    limits: EdgeLimits = EdgeLimits()


class Tables(_Section, frozen=True, kw_only=True):
    """How committed records become table rows."""

    interval_s: Annotated[Duration, Meta(ge=0.05, description="How often new records are put into the tables.")] = (
        field(default=10.0, name="interval")
    )


class HubLimits(_Section, frozen=True, kw_only=True):
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


class HubConfig(_Section, frozen=True, kw_only=True):
    """A hub node: takes links from edges, commits to the object store, keeps the tables, and answers readers."""

    listen: Annotated[Bind, Meta(description="Address and port for links and readers. Port 0 takes any free port.")] = (
        "127.0.0.1:8090"
    )
    anonymous: Annotated[
        Anonymous,
        Meta(
            description="Without a `tokens_file` the hub takes everyone who reaches its port: `loopback` allows that "
            "only on this machine, `allowed_beyond_loopback` says that the network is trusted."
        ),
    ] = "loopback"
    store: Annotated[
        Store,
        Meta(
            description="Where everything is kept: a folder, or `s3://bucket/prefix`. Credentials for S3 come from "
            "the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`) "
            "or the machine's role."
        ),
    ]
    shards: Annotated[
        Count, Meta(le=1024, description="How many independent logs the hub keeps. Fixed when the store is first used.")
    ] = 4
    commit_interval_s: Annotated[
        Duration,
        Meta(
            le=60,
            description="Longest time that records wait for others to share one object. Acknowledgements wait for it.",
        ),
    ] = field(default=0.25, name="commit_interval")
    mark_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="While no records come, how often an edge's word that there were none is stored; completeness "
            "moves on in these steps then. Each is one object per shard, which a bucket charges for: with `10s` an "
            "idle shard makes 260,000 a month, some 1.30 USD on S3. With records it costs nothing extra.",
        ),
    ] = field(default=10.0, name="mark_interval")
    chunk_bytes_max: Annotated[
        Size, Meta(ge=64 << 10, le=512 * MiB, description="Size at which an object is written without waiting longer.")
    ] = 8 * MiB
    tables: Annotated[Tables | None, Meta(description="The tables; `null` when another node keeps them.")] = Tables()
    tokens_file: Annotated[
        Path | None,
        Meta(description="File of hashed tokens that `weft token create` writes. Without it nobody needs a token."),
    ] = None
    limits: HubLimits = HubLimits()
