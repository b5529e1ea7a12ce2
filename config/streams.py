"""What an edge node stores, how much of it, and where it goes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.values import Duration, Filters, MiB, Path, Section, Size, Urls


class Disk(Section, frozen=True, kw_only=True):
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
        Annotated[Size, Meta(ge=1 * MiB, le=1 << 30)] | None,
        Meta(
            description="Size of one file of the log: what is freed at a time. At most a quarter of the budget. When "
            "it is left out, 64 MiB or an eighth of the budget, whichever is less.",
        ),
    ] = field(default=None, name="segment")
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


class Retain(Section, frozen=True, kw_only=True):
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


class Stream(Section, frozen=True, kw_only=True):
    """One stream: which topics it takes. Devices are keys within it, so streams are few."""

    from_: Annotated[
        Filters,
        Meta(
            description="MQTT filter or list of filters whose messages this stream keeps. Named levels such as "
            '`"plant/{line}/+/telemetry"` become columns of the table. A topic that several streams '
            "match is kept in each of them."
        ),
    ] = field(name="from")
    payload: Annotated[
        Literal["bytes", "text", "json"],
        Meta(
            description="What the payloads are. With `text` (UTF-8) or `json` the table has them as a string, which "
            "engines open with their JSON operators; the bytes of a payload that is neither stand in a column of their "
            "own. Set it before the first record reaches the hub: a table never changes its columns."
        ),
    ] = "bytes"
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


class Unrouted(Section, frozen=True, kw_only=True):
    """What becomes of messages whose topic no stream matches."""

    policy: Annotated[
        Literal["keep", "live", "refuse"],
        Meta(
            description="`keep` writes them to the stream `unrouted` before they are acknowledged; no link carries it. "
            "`live` sends them to subscribers and keeps them only for persistent sessions that want them. `refuse` "
            "takes none of them: MQTT 5.0 clients get reason code 0x90, for others see `auth.refused_publish`. "
            "`unrouted: live` is short for `unrouted: {policy: live}`."
        ),
    ] = "keep"
    time_s: Annotated[
        Duration, Meta(ge=1, description="Age at which records of the stream `unrouted` go, as with `retain.time`.")
    ] = field(default=86_400.0, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Most of the log that the stream `unrouted` may take; its oldest records make room. When it is "
            "left out, 64 MiB or a sixteenth of the budget, whichever is less.",
        ),
    ] = field(default=None, name="size")


class Link(Section, frozen=True, kw_only=True):
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
