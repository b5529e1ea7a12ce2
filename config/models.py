"""The settings of an edge node and of a hub, as frozen typed models: one place for name, default, unit and meaning.

A value's unit stands in its field name (``_bytes``, ``_s``); in YAML people write the unit with the value (``64MiB``,
``10s``), so there the key goes without it. Paths are absolute once loaded. Secrets are never values here, only the
files that hold them. ``config/load.py`` reads the descriptions, units and bounds from here, and so do the JSON schema
and the reference page.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.limits import EdgeLimits, HubLimits, State
from weft.config.listeners import Auth, Http, MqttListener
from weft.config.streams import Disk, Link, Stream, Unrouted
from weft.config.values import Anonymous, Bind, Count, Duration, MiB, Path, Section, Size, Store


class EdgeConfig(Section, frozen=True, kw_only=True):
    """An edge node: takes messages from devices, keeps them in a local log, and sends them to hubs."""

    node: Annotated[
        str,
        Meta(
            description="The node's name, unique within its tenant. It is part of every record's identity; "
            "`weft edge rename` changes it."
        ),
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
        Annotated[Duration, Meta(le=60)] | None,
        Meta(
            description="Time between two writes to the disk, in which messages gather. Without it a quiet node "
            "writes at once and a busy one every 8 to 12 ms. `0s` writes at once always. More spares flash and makes "
            "acknowledgements wait that long.",
        ),
    ] = field(default=None, name="commit_interval")
    streams: Annotated[dict[str, Stream], Meta(description="The streams by name.", max_length=1024)] = field(
        default_factory=dict
    )
    unrouted: Annotated[Unrouted, Meta(extra_json_schema={"x-short": "policy"})] = Unrouted()
    links: Annotated[dict[str, Link], Meta(description="The links by name.", max_length=64)] = field(
        default_factory=dict
    )
    state: State = State()
    limits: EdgeLimits = EdgeLimits()


class Tables(Section, frozen=True, kw_only=True):
    """How committed records become table rows."""

    interval_s: Annotated[Duration, Meta(ge=0.05, description="How often new records are put into the tables.")] = (
        field(default=10.0, name="interval")
    )


class HubConfig(Section, frozen=True, kw_only=True):
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
