"""The settings of an edge node and of a hub, as frozen typed models: one place for name, default, unit and meaning.

A field's name contains the unit of its value (``_bytes``, ``_s``); in YAML people write the unit with the value
(``64MiB``, ``10s``), so the key there has no unit. Paths are absolute once loaded. Secrets are never values here, only
the files that hold them. ``config/load.py`` reads the descriptions, units and bounds from here, and so do the JSON
schema and the reference page.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.functions.step import SparkplugHost
from weft.config.limits import EdgeLimits, HubLimits
from weft.config.links import Link, Pair, Region
from weft.config.listeners import Auth, Http, HubTls, Jwt, Listener, QueueBounds
from weft.config.sources import SOURCES_MAX, Collector, Source, Tracing
from weft.config.streams import Disk, Encryption, State, Stream, Unrouted
from weft.config.units import (
    AdvertisedUrls,
    Anonymous,
    Bind,
    Count,
    Duration,
    Hosts,
    ListenerAnonymous,
    MiB,
    Path,
    Section,
    Size,
    Store,
)


class EdgeConfig(Section, frozen=True, kw_only=True):
    """An edge node: takes messages from devices, keeps them in a local log, and sends them to hubs."""

    node: Annotated[
        str,
        Meta(
            description="The node's name, unique within its tenant. It is part of every record's identity; "
            "`weft edge rename` changes it."
        ),
    ]
    tenant: Annotated[str, Meta(description="Tenant that owns the node's data.")] = "default"
    data_dir: Annotated[
        Path,
        Meta(
            description="Folder of the node's log. It is created if it does not exist; only one process at a time "
            "may use it."
        ),
    ]
    listeners: Annotated[
        dict[str, Listener | None],
        Meta(
            description="Listeners for devices, by name; `null` for none. Listeners named `mqtts`, `ws`, `wss`, "
            "`amqp`, `amqps`, `http` and `https` use that protocol. For any other name, set `protocol`, `tls` or "
            "`websocket`.",
            max_length=64,
        ),
    ] = field(default_factory=lambda: {"mqtt": Listener()})
    auth: Auth = Auth()
    http: Annotated[Http | None, Meta(description="Status page of the node; `null` for none.")] = Http()
    encryption: Annotated[
        Encryption | None,
        Meta(description="Encryption of everything in `data_dir` that holds users' data; `null` for none."),
    ] = None
    disk: Disk = Disk()
    commit_interval_s: Annotated[
        Annotated[Duration, Meta(le=60)] | None,
        Meta(
            description="Time between two disk writes, in which messages gather. Unset: a quiet node writes at "
            "once, a busy one every 8 to 12 ms. `0s` always writes at once. A longer interval reduces flash "
            "wear and delays every acknowledgement by that time."
        ),
    ] = field(default=None, name="commit_interval")
    streams: Annotated[dict[str, Stream], Meta(description="Streams, by name.", max_length=1024)] = field(
        default_factory=dict
    )
    functions_signed_by: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=8, extra_json_schema={"x-unit": "path"})],
        Meta(
            description="PEM files with public keys of Ed25519, at most 8. With some, `file` and `files` of `python` "
            "functions run only with a signature of one of these keys beside them (`weft config sign-code`). The "
            "files are read for each check. Empty: signatures are not checked."
        ),
    ] = ()
    unrouted: Annotated[Unrouted, Meta(extra_json_schema={"x-short": "policy"})] = Unrouted()
    links: Annotated[dict[str, Link], Meta(description="Links, by name.", max_length=64)] = field(default_factory=dict)
    pair: Annotated[Pair | None, Meta(description="Another node that is this one's second disk; unset for none.")] = (
        None
    )
    sparkplug: Annotated[
        SparkplugHost | None, Meta(description="Host application of Sparkplug B that the node is; unset for none.")
    ] = None
    sources: Annotated[
        dict[str, Source],
        Meta(description="Existing brokers from which the node receives messages, by name.", max_length=SOURCES_MAX),
    ] = field(default_factory=dict)
    tracing: Annotated[Tracing | None, Meta(description="Traces for OpenTelemetry; unset for none.")] = None
    state: State = State()
    queues: QueueBounds = QueueBounds()
    limits: EdgeLimits = EdgeLimits()


class Tables(Section, frozen=True, kw_only=True):
    """Delta tables of the committed records."""

    interval_s: Annotated[
        Annotated[Duration, Meta(ge=0.05)] | None,
        Meta(
            description="How often new records are written to the tables. Unset: every `10s` in a folder, every `2m` "
            "in a bucket, which charges for requests. Each time costs one object per stream, and one per stream and "
            "shard."
        ),
    ] = field(default=None, name="interval")
    write_at: Annotated[
        Size,
        Meta(
            ge=1 << 10,
            le=1 << 30,
            description="Size of a stream's new records in the log from which on they are written at the next "
            "`interval`. Only with `write_after`.",
        ),
    ] = 16 * MiB
    write_after_s: Annotated[
        Annotated[Duration, Meta(ge=0.05, le=86_400)] | None,
        Meta(
            description="How long fewer records than `write_at` wait for more, so that quiet streams cost fewer files. "
            "Readers of the log see them at once. Unset: they are written at the next `interval`. Where a tenant's "
            "streams times shards are 4,000 or more, its quiet ones wait for several, half an hour at most."
        ),
    ] = field(default=None, name="write_after")
    joined_size: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            le=1 << 30,
            description="Size up to which the hub joins small files. Files from a quarter of it on stay as they are.",
        ),
    ] = 512 * MiB
    vacuum_after_s: Annotated[
        Duration,
        Meta(
            ge=2 * 3600,
            le=3650 * 86_400,
            description="Age at which files that were joined into others are deleted, and entries of a table's log "
            "that a checkpoint repeats. A query must end, and a stream that reads a table must follow, within this "
            "time.",
        ),
    ] = field(default=7 * 86_400.0, name="vacuum_after")
    formats: Annotated[
        tuple[Literal["delta", "iceberg"], ...],
        Meta(
            description="Formats in which engines find the tables, always as `delta`. `iceberg` adds metadata over the "
            "same files, and serves it at `/iceberg` of the hub's port. It needs the extra `iceberg`. "
            "`weft hub table set HUB STREAM --formats delta,iceberg` sets those of a stream."
        ),
    ] = ("delta",)
    iceberg_interval_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=86_400,
            description="How often new versions of a table become a snapshot of Iceberg, or after 64 versions. Each "
            "costs four objects. At most an eighth of `vacuum_after`.",
        ),
    ] = field(default=600.0, name="iceberg_interval")


class Kafka(Section, frozen=True, kw_only=True):
    """Listener for clients of Kafka, which read streams as topics. It needs the extra `kafka`."""

    listen: Annotated[
        Bind,
        Meta(
            description="Address and port for clients of Kafka, with the certificate of the hub's `tls` if it has one. "
            "Each process has a port of its own, from this one on. Port 0 picks any free port."
        ),
    ] = "127.0.0.1:9092"
    advertise: Annotated[
        Bind | None,
        Meta(
            description="Address and port at which clients reach the first process of this machine; the others follow "
            "at the next ports. Unset: the address at which a client came, so that it reaches processes of this "
            "machine only."
        ),
    ] = None


class HubConfig(Section, frozen=True, kw_only=True):
    """A hub node: takes links from edges, commits to the object store, keeps the tables, and answers readers."""

    listen: Annotated[
        Bind,
        Meta(
            description="Address and port for links and readers. `*` is every address of the machine, by IPv4 and "
            "IPv6. Port 0 picks any free port."
        ),
    ] = "127.0.0.1:8090"
    anonymous: Annotated[
        ListenerAnonymous,
        Meta(
            description="Who may connect while there are no tokens: until the first `weft hub token add`. `never`: no "
            "one. `loopback`: only clients on this machine. `allowed_beyond_loopback`: everyone who reaches the port; "
            "for networks that you trust."
        ),
    ] = "loopback"
    tls: Annotated[
        HubTls | None,
        Meta(description="TLS; unset: plain HTTP, which only this machine may use unless `plain_http` allows more."),
    ] = None
    plain_http: Annotated[
        Anonymous,
        Meta(
            description="Who may send tokens without `tls`. `loopback`: only this machine, so that `listen` may name "
            "no other address. `allowed_beyond_loopback`: everyone who reaches the port; for a network that you trust, "
            "or behind a proxy with TLS."
        ),
    ] = "loopback"
    hosts: Annotated[
        Hosts | None,
        Meta(
            description="Names under which readers without a token may call the hub, beside addresses and "
            "`localhost`. Requests under other names are refused, because pages of strangers in a browser could come "
            "under a name of their own (DNS rebinding). Unset: no names on loopback, every name elsewhere. "
            "With tokens it does not matter: pages have none."
        ),
    ] = None
    store: Annotated[
        Store,
        Meta(
            description="Store of the hub: a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or "
            "`az://container/prefix`. Credentials come from the environment, whose variables "
            "`docs/reference/stores.md` lists, or from the machine's role."
        ),
    ]
    shards: Annotated[
        Annotated[Count, Meta(le=1024)] | None,
        Meta(
            description="Number of independent logs with which a new store begins: a power of two. Each edge belongs "
            "to one of them; `weft hub split` makes more. Unset: a new store gets 16, and an existing one keeps its "
            "number."
        ),
    ] = None
    shards_max: Annotated[
        Annotated[Count, Meta(le=1024)] | None,
        Meta(
            description="Number of shards up to which the hub splits busy ones by itself. A shard is busy if it makes "
            "most of a process's work, and the process keeps 70 % of a core busy for ten minutes. A split cannot be "
            "reverted. Unset: only `weft hub split` splits."
        ),
    ] = None
    processes: Annotated[
        Count | None,
        Meta(
            description="Number of processes that share the shards, each with shards and a port of its own: the port "
            "of `listen` and those after it. Without it, one per core that the hub may run on, but not more than "
            "URLs in `advertise`; never more than `shards`. With 1, or port 0, there is one process."
        ),
    ] = None
    advertise: Annotated[
        AdvertisedUrls | None,
        Meta(
            description="URLs at which edges reach the processes, in their order, one for each. Without it, an edge "
            "of another process's shard is sent to the host that it came to and that process's port. An edge that "
            "cannot reach the other process keeps its link."
        ),
    ] = None
    commit_interval_s: Annotated[
        Annotated[Duration, Meta(le=60)] | None,
        Meta(
            description="Longest time that records wait so that others can share their object. Acknowledgements to "
            "edges wait as long. Unset: `40ms` in a folder while commits are cheap and `250ms` at most, `1s` in a "
            "bucket, which charges for each object. An edge that has sent half of what it may send ahead waits for "
            "at most 250 ms."
        ),
    ] = field(default=None, name="commit_interval")
    mark_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often at most the marks of idle edges are stored when no records come that they could "
            "ride with. Completeness of such lanes advances in these steps. Each time costs one object per shard, and "
            "a bucket charges for it. An idle shard writes 43,000 objects a month with `1m`, about 0.22 USD on S3. "
            "Marks that come with records cost nothing extra. A mark that follows records waits 10 s at most.",
        ),
    ] = field(default=60.0, name="mark_interval")
    ping_interval_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=3600,
            description="Silence of an edge after which the hub pings it. Edges ping more often by themselves "
            "(`links.<name>.ping_interval`), so that this matters only for one that does not.",
        ),
    ] = field(default=75.0, name="ping_interval")
    silence_s: Annotated[
        Duration,
        Meta(
            ge=2,
            le=7200,
            description="Silence of an edge after which the hub treats its link as dead. Longer than `ping_interval`, "
            "here and at the edges.",
        ),
    ] = field(default=150.0, name="silence")
    unavailable_after_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="Time in trouble with its store after which a shard sends its edges to the hub's other nodes.",
        ),
    ] = field(default=5.0, name="unavailable_after")
    messages_per_second: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Messages a second that one tenant may publish to edges at one process. One to a group counts "
            "once for each edge. Those of ten seconds may come at once. Above it, the hub answers 429 with the time to "
            "wait.",
        ),
    ] = 2000
    chunk_bytes_max: Annotated[
        Size,
        Meta(ge=64 << 10, le=512 * MiB, description="Size at which a chunk is written without waiting any longer."),
    ] = 8 * MiB
    retain_log_s: Annotated[
        Annotated[Duration, Meta(ge=60)] | None,
        Meta(
            description="Time that the log's chunks are kept at least. Older ones are deleted when the tables hold "
            "all of their records: some 15 minutes after that, and never while a table is in trouble. "
            "Readers of the log, such as Spark jobs, then find older records in the tables. Unset: all chunks "
            "stay. The process that keeps the tables deletes."
        ),
    ] = field(default=None, name="retain_log")
    retired_after_s: Annotated[
        Annotated[Duration, Meta(ge=3600)] | None,
        Meta(
            description="Silence of an edge's stream after which it no longer holds completeness back, "
            "once all of its records are in the table. Without a last word it leaves an open gap. It counts again "
            "when the edge comes back. `null` for never; `weft hub retire` does the same at once."
        ),
    ] = field(default=90 * 86_400.0, name="retired_after")
    dropped_after_s: Annotated[
        Duration,
        Meta(
            ge=3600,
            description="Time after that when the hub forgets the stream of that edge. The numbers of its records "
            "stay in the store, so an edge that comes back continues and nothing is stored twice.",
        ),
    ] = field(default=30 * 86_400.0, name="dropped_after")
    tables: Annotated[Tables | None, Meta(description="Delta tables; `null` if another node keeps them.")] = Tables()
    sharing: Annotated[
        bool,
        Meta(
            description="Whether clients of Delta Sharing may read the tables, at `/delta-sharing` of the hub's port. "
            "They need a token that `weft hub share` makes, or one that may read the streams."
        ),
    ] = False
    sql: Annotated[
        bool,
        Meta(
            description="Whether readers may ask the hub in SQL over the tables (`weft sql`, `POST /v1/sql`). It needs "
            "the extra `sql`, and memory for two queries of `limits.sql`."
        ),
    ] = False
    kafka: Annotated[
        Kafka | None, Meta(description="Listener for clients of Kafka, which read streams as topics; unset: none.")
    ] = None
    peers: Annotated[
        bool,
        Meta(
            description="Whether another cluster, to which the edges link too, may have records that this one lacks. "
            "An edge deletes records that the other cluster acknowledged; here they are gaps of reason `absent`. "
            "With `true` they hold completeness back until they arrive from there, with `false` they do not. With "
            "`true`, edges also know that this hub may have records which they sent to the other one. So set it at "
            "all clusters that relay to each other (`regions`)."
        ),
    ] = False
    regions: Annotated[
        dict[str, Region],
        Meta(
            description="Hubs of other clusters that get what this hub's log receives, by name. All hosts of a hub "
            "need the same.",
            max_length=16,
        ),
    ] = field(default_factory=dict)
    jwt: Annotated[
        Jwt | None,
        Meta(
            description="Tokens of an issuer that are admitted beside those of the hub. With it every request needs a "
            "token. Unset: none."
        ),
    ] = None
    tracing: Annotated[
        Collector | None, Meta(description="Traces for OpenTelemetry of the messages that edges trace; unset for none.")
    ] = None
    limits: HubLimits = HubLimits()
