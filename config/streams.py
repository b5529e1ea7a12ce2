"""Streams of an edge node, the disk space for them, and the links that carry them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.functions.payload import Payload
from weft.config.functions.step import FunctionStep
from weft.config.values import Duration, Filters, MiB, Path, Section, Size, Urls

FUNCTIONS_MAX = 32
"""Largest number of functions of one stream. Split a longer chain into streams: each can be inspected on its own."""
INPUTS_MAX = 64
"""Largest number of streams that one stream is derived from."""


class Disk(Section, frozen=True, kw_only=True):
    """Disk space of the node's log, and how it is written."""

    budget_bytes: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            description="Maximum disk space of the log, to the byte. When the budget is used up, the node deletes "
            "records that a hub has acknowledged. It then deletes the oldest records of streams with "
            "`when_full: drop_oldest` and records each loss. After that the log refuses records: "
            "devices get no acknowledgement and send again.",
        ),
    ] = field(default=16 << 30, name="budget")
    segment_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB, le=1 << 30)] | None,
        Meta(
            description="Size of one file of the log, which is the unit in which space is freed. At most a "
            "quarter of the budget. Unset: 64 MiB or an eighth of the budget, whichever is less.",
        ),
    ] = field(default=None, name="segment")
    low_water_bytes: Annotated[
        Size | None,
        Meta(
            description="Space left for records in the budget below which the node warns. Unset: a tenth of the budget."
        ),
    ] = field(default=None, name="low_water")
    compression: Annotated[
        Literal["zstd", "none"],
        Meta(description="Compression of batches of 4 KiB and more. `none` saves CPU and wears flash more."),
    ] = "zstd"
    compression_level: Annotated[
        int, Meta(ge=1, le=19, description="zstd level of the log: higher is smaller and slower.")
    ] = 1
    card_endurance_bytes: Annotated[
        Size | None,
        Meta(
            description="Endurance of the SD card or eMMC in bytes written (TBW), as its maker states it. Status "
            "and metrics then show how long the card lasts at the present rate."
        ),
    ] = field(default=None, name="card_endurance")


class Retain(Section, frozen=True, kw_only=True):
    """Retention of a stream's records on the node."""

    time_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(
            description="Age at which records are deleted; some stay up to half as long again. Records that no "
            "hub has by then are recorded as lost (`expired`). Unset: age does not matter.",
        ),
    ] = field(default=None, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum disk space of the stream in the log. `when_full` says what happens when it is "
            "used up. Unset: only the disk's budget counts.",
        ),
    ] = field(default=None, name="size")


class Stream(Section, frozen=True, kw_only=True):
    """A stream, and the topics or streams that its records come from. Devices are keys in it: streams are few."""

    from_: Annotated[
        Filters,
        Meta(
            description="MQTT filter, or list of filters, of the messages that this stream keeps. Named levels "
            'such as `"plant/{line}/+/telemetry"` become columns of the table. A message that several '
            "streams match is kept in each of them. Every stream has `from` or `from_stream`, unless a `route` of "
            "another stream names it."
        ),
    ] = field(default=(), name="from")
    from_stream: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=INPUTS_MAX)],
        Meta(
            description="Stream, or list of streams, of this node that this one is derived from. Its functions read "
            "their records from the log, behind the disk's sync, and write their results to this stream."
        ),
    ] = ()
    functions: Annotated[
        tuple[FunctionStep, ...],
        Meta(
            max_length=FUNCTIONS_MAX,
            description="Functions that each record goes through, in this order, before it is in this stream. Records "
            "that cannot be read, or for which an expression fails, go to the stream `<name>-errors`.",
        ),
    ] = ()
    raw: Annotated[
        Literal["discard"] | Retain | None,
        Meta(
            description="Treatment of the original messages, for a stream with `from` and `functions`. Unset: they "
            "are deleted once the functions have read them. `{time: 7d, size: 1GiB}` keeps them longer, so that they "
            "can be replayed. `discard` writes none of them to the disk, which works if no function has a memory."
        ),
    ] = None
    payload: Annotated[
        Payload | None,
        Meta(
            extra_json_schema={"x-short": "format"},
            description="Format of the payloads. Unset: `bytes`, or that of the stream that this one is derived from.",
        ),
    ] = None
    misfits: Annotated[
        Literal["refuse", "take"],
        Meta(
            description="Treatment of messages posted by HTTP to the stream's name that do not fit it. `from` does "
            "not match their topic, or `payload` is `json` and they are not JSON. `refuse` answers 422 or 400 and "
            "stores nothing of the request. `take` stores the messages. `weft edge status` counts both."
        ),
    ] = "refuse"
    resent: Annotated[
        Literal["flag", "suppress"],
        Meta(
            description="Treatment of a QoS 1 message that a device with a persistent session sends again "
            "although it is already in the log. `flag` stores it again, marked as resent. `suppress` "
            "only acknowledges it."
        ),
    ] = "flag"
    when_full: Annotated[
        Literal["refuse", "drop_oldest"],
        Meta(
            description="What happens when there is no room and no hub has the oldest records. `refuse` "
            "acknowledges no more messages, so that devices keep them and send again. `drop_oldest` "
            "deletes the oldest records of this stream and records the loss (`budget`)."
        ),
    ] = "refuse"
    retain: Annotated[Retain, Meta(description="How long records stay; unset: until their space is needed.")] = Retain()
    replicate: Annotated[
        bool,
        Meta(
            description="`false` keeps the stream on this node: no link carries it, and only `retain` deletes its "
            "records."
        ),
    ] = True


class Unrouted(Section, frozen=True, kw_only=True):
    """Treatment of messages whose topic no stream matches."""

    policy: Annotated[
        Literal["keep", "live", "refuse"],
        Meta(
            description="`keep` writes them to the stream `unrouted` before they are acknowledged; no link "
            "carries it. `live` delivers them to subscribers and stores them only for persistent "
            "sessions that are subscribed. Where nothing takes one, MQTT 5.0 clients get reason code 0x10. "
            "`refuse` rejects them: MQTT 5.0 clients get reason code 0x90, for others see "
            "`auth.refused_publish`. `unrouted: live` is short for `unrouted: {policy: live}`."
        ),
    ] = "keep"
    time_s: Annotated[
        Duration,
        Meta(ge=1, description="Age at which records of the stream `unrouted` are deleted, as with `retain.time`."),
    ] = field(default=86_400.0, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum disk space of the stream `unrouted`; its oldest records are deleted first. "
            "Unset: 64 MiB or a sixteenth of the budget, whichever is less.",
        ),
    ] = field(default=None, name="size")


class Link(Section, frozen=True, kw_only=True):
    """A link, which carries streams to a hub."""

    to: Annotated[
        Urls,
        Meta(description="URL, or list of URLs, of the nodes of one hub, tried in turn: `https://hub.example.com`."),
    ]
    token_file: Annotated[
        Path | None,
        Meta(description="File with the token for the hub on one line. Only the node's user may be able to read it."),
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
    streams: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Streams that this link carries. Unset: all of them."),
    ] = None
    cluster: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{32}$", examples=["5e1f60a2c3d84b7796a0b1c2d3e4f506"])] | None,
        Meta(
            description="Id of the hub's cluster, as `weft hub status` and `weft edge status` show it. A hub of "
            "another one gets no records, and its acknowledgements count for nothing. Unset: any hub that answers at "
            "the URLs is accepted.",
        ),
    ] = None
    on_conflict: Annotated[
        Literal["stop", "continue"],
        Meta(
            description="What the node does when the hub refuses the link because another copy of the node's log "
            "has taken over. `stop` acknowledges no more messages of the streams that this link carries, so that "
            "devices keep them and send again. `continue` goes on: the hub has no way to know of these records, and "
            "takes them only if an operator decides for this node."
        ),
    ] = "stop"
    hold_at_start_s: Annotated[
        Duration,
        Meta(
            description="Longest time that a start waits for this link's hub to report what it holds of the node's "
            "log. Clients that connect meanwhile wait, and nothing is acknowledged. A log restored from an older copy "
            "would give records numbers that the hub has for others. After this time the node takes messages without "
            "the answer. `0s` does not wait. New logs, and links with `on_conflict: continue`, never wait.",
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
        Duration,
        Meta(ge=0.01, description="Shortest wait before the edge reconnects. Waits double, with jitter."),
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
    mark_interval_s: Annotated[
        Duration,
        Meta(ge=1, description="How often idle streams tell the hub that nothing is missing."),
    ] = field(default=60.0, name="mark_interval")
    ping_interval_s: Annotated[
        Duration,
        Meta(
            ge=1,
            description="How often the edge asks whether the hub is there. Shorter costs more on a metered network; "
            "proxies may close connections that are silent for longer.",
        ),
    ] = field(default=45.0, name="ping_interval")
    silence_s: Annotated[
        Duration,
        Meta(ge=2, description="Silence of the hub after which the edge reconnects."),
    ] = field(default=120.0, name="silence")
