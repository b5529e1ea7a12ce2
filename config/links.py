"""Links of an edge node: what they carry to a hub, when, and what the hub may send back."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.units import Bind, Duration, Filters, MiB, Path, Rate, Section, Size, Urls, Windows, Zone

Files = Annotated[tuple[str, ...], Meta(max_length=8, extra_json_schema={"x-unit": "path"})]
HostPattern = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:*_-]+$", max_length=253)]


class Times(Section, frozen=True, kw_only=True):
    """Times at which a link may send."""

    between: Annotated[
        Windows,
        Meta(
            description="Window, or list of windows, of local time: `01:00-05:00`. One that ends earlier than it "
            "begins ends on the next day."
        ),
    ]
    days: Annotated[
        tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...],
        Meta(min_length=1, max_length=7, description="Days of the week on which the windows begin."),
    ] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    zone: Annotated[
        Zone, Meta(description="Time zone of the windows, by its name in the IANA database, such as Europe/Berlin.")
    ] = "UTC"


class ScheduleEntry(Times, frozen=True, kw_only=True):
    """Times at which a link may send some of its streams."""

    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)],
        Meta(description="Names of streams, or patterns such as `bulk*`."),
    ]


class Budget(Section, frozen=True, kw_only=True):
    """Bytes that a link may use in a month."""

    size_bytes: Annotated[
        Size,
        Meta(
            ge=1_000_000,
            description="Bytes of a month on the wire, of both directions, with all headers. At its end data waits "
            "for the next month. The link stays connected: what that costs is reserved, up to half of the budget.",
        ),
    ] = field(name="size")
    day: Annotated[int, Meta(ge=1, le=28, description="Day of the month on which the next one begins.")] = 1
    zone: Annotated[Zone, Meta(description="Time zone in which that day begins.")] = "UTC"


class LinkPolicy(Section, frozen=True, kw_only=True):
    """Settings of a link that change without a new connection."""

    order: Annotated[
        Literal["strict", "fresh_first"],
        Meta(
            description="Order of a stream's records. `strict` sends the oldest first. `fresh_first` sends new records "
            "at once and those that waited beside them; the stream is complete only once those have arrived."
        ),
    ] = "strict"
    history_share: Annotated[
        float,
        Meta(
            ge=0.1,
            le=0.9,
            description="With `fresh_first`: least share of the link for records that waited, while new ones fill it.",
        ),
    ] = 0.2
    priorities: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=100)]],
        Meta(
            max_length=64,
            description="Priority of streams, by name or pattern such as `bulk*`; the first match counts. Streams that "
            "wait share the link in proportion: none of them stops. Without a match it is 10.",
        ),
    ] = field(default_factory=dict)
    rate: Annotated[Rate | None, Meta(description="Most bytes a second that the link sends. Unset: no limit.")] = None
    every_s: Annotated[
        Duration,
        Meta(
            le=86_400,
            description="Least time from one transfer of data to the next, each with all that waits: fewer, fuller "
            "messages. `0s` sends at once.",
        ),
    ] = field(default=0.0, name="every")
    schedule: Annotated[
        tuple[ScheduleEntry, ...],
        Meta(
            max_length=32,
            description="Times at which streams may be sent. The first entry with the stream counts; streams in none "
            "are always sent.",
        ),
    ] = ()
    budget: Annotated[
        Budget | None,
        Meta(
            description="Bytes that the link may use in a month: a size, or a section. Unset: no limit.",
            extra_json_schema={"x-short": "size"},
        ),
    ] = None


class Down(Section, frozen=True, kw_only=True):
    """The messages that a hub may publish to the node's clients."""

    topics: Annotated[
        Filters,
        Meta(
            description="Topic filters of the messages that the hub may publish here. The node refuses messages for "
            "other topics, and the hub's operator sees that."
        ),
    ] = ("down/#",)


class Pull(Section, frozen=True, kw_only=True):
    """The records that a hub may ask for beside those that the link carries."""

    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)],
        Meta(
            description="Names of streams, or patterns such as `vibration*`, of which the hub may ask for records. "
            "Streams that the link carries are not asked for: their records come by themselves."
        ),
    ]
    rate: Annotated[
        Rate,
        Meta(
            description="Most bytes a second of such records, as they are stored. They go only while no others wait; "
            "on a slow line, a low rate keeps others from waiting behind one piece of them."
        ),
    ] = 256 << 10
    size_bytes: Annotated[
        Size, Meta(description="Most bytes of one pull, as they are stored. The node refuses a window with more.")
    ] = field(default=1024 * MiB, name="size")


class Link(LinkPolicy, frozen=True, kw_only=True):
    """A link, which carries streams to a hub."""

    to: Annotated[
        Urls,
        Meta(description="URL, or list of URLs, of the nodes of one hub, tried in turn: `https://hub.example.com`."),
    ]
    token_file: Annotated[
        Path | None,
        Meta(description="File with the token for the hub on one line. Only the node's user may be able to read it."),
    ] = None
    proxy: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/@\s]+$", examples=["http://proxy.example.com:3128"])] | None,
        Meta(
            description="URL of an HTTP proxy between the node and the hub. It reaches `https` hubs by CONNECT. For "
            "`http` hubs it must forward WebSockets, without credentials. Unset: the proxy of the environment."
        ),
    ] = None
    proxy_username: Annotated[str | None, Meta(description="User name at `proxy`.")] = None
    proxy_password_file: Annotated[Path | None, Meta(description="File with the password for `proxy` on one line.")] = (
        None
    )
    proxy_password_env: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", examples=["PROXY_PASSWORD"])] | None,
        Meta(description="Name of an environment variable of the node with that password, in place of a file."),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that the hub's certificate may come from, and no others. Unset: "
            "the system's authorities. Like the next two files, it is read again before each connection."
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        Meta(
            description="PEM file with the certificate that the node shows to the hub, followed by its chain. Unset: "
            "it shows none."
        ),
    ] = None
    key: Annotated[
        Path | None,
        Meta(
            description="PEM file with that certificate's key, not encrypted. Only the node's user may be able to read "
            "it."
        ),
    ] = None
    config_from_hub: Annotated[
        Literal["never", "allowed", "allowed_with_restart"],
        Meta(
            description="Whether this link's hub may override settings of this file (`weft hub config`). `allowed`: "
            "those that change on the running node: streams, links and sources. `allowed_with_restart`: also others, "
            "for which the node starts again by itself. Files, credentials, listeners, accounts and `data_dir` "
            "belong to this file in each case. Only one link may set it."
        ),
    ] = "never"
    config_signed_by: Annotated[
        Files,
        Meta(
            description="PEM files with public keys of Ed25519, at most 8. If set, the node accepts only settings of "
            "the hub that one of these keys signed for it (`weft config sign`), and never earlier ones again. The "
            "files are read for each configuration. Empty: signatures are not checked."
        ),
    ] = ()
    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Streams that this link carries. Unset: all of them."),
    ] = None
    down: Annotated[
        Down | None,
        Meta(
            description="Messages from the hub (`weft hub publish`) that the node publishes to its clients. `down: "
            "{}` accepts those for `down/#`. Unset: the node accepts none."
        ),
    ] = None
    pull: Annotated[
        Pull | None,
        Meta(
            description="Records that the hub may ask for (`weft hub pull`), of streams that stay at the node. "
            "Unset: none."
        ),
    ] = None
    cluster: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{32}$", examples=["5e1f60a2c3d84b7796a0b1c2d3e4f506"])] | None,
        Meta(
            description="Id of the hub's cluster, as `weft hub status` and `weft edge status` show it. A hub of "
            "another one gets no records, and its acknowledgements count for nothing. Unset: any hub that answers at "
            "the URLs is accepted."
        ),
    ] = None
    redirects: Annotated[
        Annotated[tuple[HostPattern, ...], Meta(max_length=64, examples=[["*.hubs.example.com"]])] | None,
        Meta(
            description="Hosts to which the hub may redirect this link, besides those of `to`; `*` stands for any "
            "characters. The link's token goes there. `[]`: only to those of `to`. Unset: hosts below and beside "
            "those of `to` (`b.hubs.example.com` for `a.hubs.example.com`). Hosts of an inner network count as "
            "beside each other. Their address is not public, or their name is one word or below `local`. If a "
            "redirect is not allowed, the link stays, which loses nothing."
        ),
    ] = None
    on_conflict: Annotated[
        Literal["stop", "continue"],
        Meta(
            description="What the node does when the hub refuses the link because another copy of the node's log has "
            "taken over. `stop` acknowledges no more messages of the streams that this link carries, so that devices "
            "keep them and send again. `continue` keeps acknowledging: the hub cannot know of these records, and "
            "accepts them only if an operator decides for this node."
        ),
    ] = "stop"
    hold_at_start_s: Annotated[
        Duration,
        Meta(
            description="Longest time that a start waits for this link's hub to report what it holds of the node's "
            "log. Clients that connect meanwhile wait, and nothing is acknowledged. A log restored from an older "
            "copy would give records numbers that the hub has for others. After this time the node accepts messages "
            "without the answer. `0s` does not wait. New logs, and links with `on_conflict: continue`, never wait."
        ),
    ] = field(default=10.0, name="hold_at_start")
    compression_level: Annotated[
        int, Meta(ge=1, le=19, description="zstd level of the connection: higher is smaller and slower.")
    ] = 3
    window_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10, le=256 * MiB, description="Maximum number of bytes sent and not yet acknowledged by the hub."
        ),
    ] = field(default=8 * MiB, name="window")
    retry_min_s: Annotated[
        Duration, Meta(ge=0.01, description="Shortest wait before the edge reconnects. Waits double, with jitter.")
    ] = field(default=0.5, name="retry_min")
    retry_max_s: Annotated[Duration, Meta(ge=0.01, description="Longest wait before the edge reconnects.")] = field(
        default=30.0, name="retry_max"
    )
    ack_timeout_s: Annotated[
        Duration,
        Meta(
            ge=1,
            description="Time after which the edge leaves a hub node that accepts data and acknowledges none of it. "
            "The next URL is tried. Where some of the data still waits in the edge's socket, it is twice this time.",
        ),
    ] = field(default=30.0, name="ack_timeout")
    beat_timeout_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Silence after which the edge leaves a hub node that has data of it. A hub that is well sends "
            "at least a beat within 1.5 s then. On a slow line the edge waits for six round trips, if that is longer, "
            "and for bytes that still leave its socket. It doubles with each silence in a row of the same node, up to "
            "`ack_timeout`. `0s`: never; raise it where a mobile network pauses for seconds.",
        ),
    ] = field(default=3.0, name="beat_timeout")
    mark_interval_s: Annotated[
        Duration, Meta(ge=1, description="How often idle streams tell the hub that nothing is missing.")
    ] = field(default=60.0, name="mark_interval")
    ping_interval_s: Annotated[
        Duration,
        Meta(
            ge=1,
            description="How often the edge pings the hub. Shorter costs more on a metered network; "
            "proxies may close connections that are silent for longer.",
        ),
    ] = field(default=45.0, name="ping_interval")
    silence_s: Annotated[Duration, Meta(ge=2, description="Silence of the hub after which the edge reconnects.")] = (
        field(default=120.0, name="silence")
    )


class PairTls(Section, frozen=True, kw_only=True):
    """TLS between the two nodes of a pair. The files are read again when they change; connections stay."""

    certificate: Annotated[
        Path, Meta(description="PEM file with the certificate of `listen`, followed by the chain up to its authority.")
    ]
    key: Annotated[
        Path,
        Meta(
            description="PEM file with that certificate's key, not encrypted. Only the node's user may be able to read "
            "it."
        ),
    ]
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that the peer's certificate may come from, and no others. "
            "Unset: the system's authorities."
        ),
    ] = None


class Pair(Section, frozen=True, kw_only=True):
    """Another node at the site, which keeps a copy of what hubs do not have yet, and whose copy this node keeps."""

    listen: Annotated[
        Bind,
        Meta(
            description="Address and port for the peer. Beyond this machine it needs `token_file` and `tls`. "
            "Port 0 picks any free port."
        ),
    ] = "127.0.0.1:7443"
    peer: Annotated[
        Urls, Meta(description="URL, or list of URLs, of the peer's `listen`: `https://b.example.com:7443`.")
    ]
    node: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Name of the peer: a copy of another node's log is refused. Unset: the first node that brings "
            "a copy is the peer from then on."
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Meta(
            description="File with one token on one line, the same at both nodes. Only the node's user may be able to "
            "read it."
        ),
    ] = None
    tls: Annotated[PairTls | None, Meta(description="TLS; unset: plain HTTP, for peers on this machine.")] = None
    acks: Annotated[
        Literal["own", "both"],
        Meta(
            description="Disks that must have a message before its acknowledgement: the node's `own`, or `both`. With "
            "`own` the copy follows. Both concern streams that a link carries."
        ),
    ] = "own"
    alone: Annotated[
        Literal["acknowledge", "refuse"],
        Meta(
            description="What a node with `acks: both` does while the peer is away. `acknowledge`: it acknowledges "
            "with one disk after `alone_after`, and notes from when to when. `refuse`: devices wait for the peer."
        ),
    ] = "acknowledge"
    alone_after_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="With `acks: both`: longest time for which an acknowledgement waits for the peer. Then the "
            "node acknowledges alone, and notes from when to when.",
        ),
    ] = field(default=2.0, name="alone_after")
    take_over_after_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(
            description="Absence of the peer after which this node sends the copy of its records to the hubs. "
            "`null`: only `weft edge take-over` does."
        ),
    ] = field(default=60.0, name="take_over_after")
    budget_bytes: Annotated[
        Annotated[Size, Meta(ge=8 * MiB)] | None,
        Meta(
            description="Most disk space of a copy, beside `disk.budget`. Unset: a quarter of `disk.budget`. There are "
            "at most 3 copies: earlier ones of a replaced node stay until hubs have their records."
        ),
    ] = field(default=None, name="budget")


class Region(Section, frozen=True, kw_only=True):
    """A link of a hub to the hub of another cluster, which gets what this one's log receives."""

    to: Annotated[Urls, Meta(description="URL, or list of URLs, of the nodes of the other hub, tried in turn.")]
    token_file: Annotated[
        Path | None,
        Meta(
            description="File with a token of scope `region` of the other hub on one line. Only the hub's user may be "
            "able to read it. It is read again before each connection."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that the other hub's certificate may come from, and no others. "
            "Unset: the system's authorities."
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        Meta(
            description="PEM file with the certificate that this hub shows to the other one, followed by its chain, "
            "where that one demands certificates of links. Beside the token."
        ),
    ] = None
    key: Annotated[Path | None, Meta(description="PEM file with that certificate's key, not encrypted.")] = None
    cluster: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{32}$", examples=["5e1f60a2c3d84b7796a0b1c2d3e4f506"])] | None,
        Meta(
            description="Id of the other cluster, as `weft hub status` shows it there. Unset: the first one that "
            "answers at the URLs, and from then on no other."
        ),
    ] = None
    redirects: Annotated[
        Annotated[tuple[HostPattern, ...], Meta(max_length=64, examples=[["*.hubs.example.com"]])] | None,
        Meta(
            description="Hosts to which the other hub may send the links on, as `redirects` of an edge's link. Unset: "
            "hosts near those of `to`."
        ),
    ] = None
    tenant: Annotated[
        Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")] | None,
        Meta(description="Tenant whose streams are relayed. Unset: all, which needs a token for all (`--tenant '*'`)."),
    ] = None
    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)],
        Meta(description="Names of the streams that are relayed, with `*` for any characters."),
    ] = ("*",)
    forward_relayed: Annotated[
        bool,
        Meta(
            description="Whether records are passed on to this region that another region relayed to this hub. "
            "Needed where regions form a chain or a star. With `false`, each region sends what its own edges "
            "brought, which is enough where all regions link to each other, and costs no bytes twice."
        ),
    ] = False
    rate: Annotated[
        Rate | None, Meta(description="Most bytes a second that the link of one shard sends. Unset: no limit.")
    ] = None
    every_s: Annotated[
        Duration,
        Meta(
            le=86_400,
            description="Least time from one transfer of a shard's data to the next, each with all that waits. `0s` "
            "sends at once.",
        ),
    ] = field(default=0.0, name="every")
    schedule: Annotated[
        Times | None,
        Meta(
            description="Times at which records are sent, those of all streams: each shard's go in the order of its "
            "log. Unset: always."
        ),
    ] = None
    budget: Annotated[
        Budget | None,
        Meta(
            description="Bytes that the links of all shards and hosts to the region may use in a month together: a "
            "size, or a section. Unset: no limit.",
            extra_json_schema={"x-short": "size"},
        ),
    ] = None
    mark_interval_s: Annotated[
        Duration, Meta(ge=1, description="How often idle streams tell the region that nothing is missing.")
    ] = field(default=60.0, name="mark_interval")
    pin_s: Annotated[
        Duration,
        Meta(
            ge=3600,
            le=366 * 86_400,
            description="How long the log keeps records that the region does not have yet, beyond `retain_log`. "
            "Later they are deleted all the same: `weft hub region status` shows of which chunks, and the region "
            "reports which numbers it lacks.",
        ),
    ] = field(default=7 * 86_400.0, name="pin")
