"""Settings of a hub node. The command line maps the YAML configuration to these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.replication.liveness import SECOND
from weft.replication.settings import ReceiverSettings

MiB = 1 << 20


@dataclass(frozen=True)
class SequencerSettings:
    """Settings of one shard's log. Durations are seconds, sizes bytes."""

    commit_interval_s: float = 0.25
    """Longest time that a batch waits so that others can share its chunk; after a longer silence it does not wait."""
    chunk_bytes_max: int = 8 * MiB
    """Pending bytes at which a chunk is written. A single longer batch still goes into one chunk."""
    pending_bytes_max: int = 64 * MiB
    """Uncommitted bytes above which the shard makes its links wait."""
    mark_interval_s: float = 60.0
    """Interval of chunks for marks of idle lanes, while there is no data for marks to travel with. In a bucket each
    costs a PUT."""
    trailing_mark_s: float = 10.0
    """The same for a mark that says something of records, or the first of a lane; never longer than the interval."""
    follow_interval_s: float = 2.0
    """Interval at which an idle shard looks for chunks of other nodes."""
    retry_min_s: float = 0.05
    retry_max_s: float = 5.0
    """Longest wait between attempts while the store is in trouble. Waits double from the shortest to this, with
    jitter."""
    unavailable_after_s: float = 5.0
    """Time in trouble with the store after which the shard closes its lanes, so that edges go to another node."""
    watermark_validity_s: float = 8.0
    """Time for which a look at the manifest's watermark holds: V of docs/architecture.md. The collector waits far
    longer."""
    lanes_max: int = 100_000
    """Maximum number of lanes in the shard's state; a link that brings another is refused."""
    lanes_per_edge_max: int = 1024
    """Maximum number of lanes of one edge, of all its logs."""
    lanes_per_tenant_max: int = 50_000
    """Maximum number of lanes of one tenant in the shard."""
    streams_per_tenant_max: int = 4000
    """Maximum number of streams of one tenant in the shard: each has a table of its own."""
    topic_bytes_per_edge_max: int = 256 << 10
    """Maximum number of bytes of the topic patterns that one edge tells."""
    origin_bytes_per_edge_max: int = 4 * MiB
    """Maximum number of bytes of the origins that one edge tells."""
    ranges_per_lane_max: int = 1024
    """Maximum number of separate ranges of a lane: bounds the state under a sender that leaves holes."""
    gaps_per_lane_max: int = 16_384
    """Maximum number of gaps of a lane: neighbours of one reason are one."""
    gaps_per_edge_max: int = 65_536
    """Maximum number of gaps of all lanes of one edge in the shard."""
    snapshot_interval_s: float = 60.0
    snapshot_chunks: int = 200
    """Number of chunks after which a snapshot is written, unless the time comes first."""


@dataclass(frozen=True)
class HubSettings:
    """Settings of one hub node."""

    store: str
    """URI or path for ``storage.object_store.open_store``."""
    store_options: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8090
    """Port; 0 takes any free port, which ``Hub.url`` returns."""
    process: int = 0
    """Number of this process among those that share the node's shards. Process 0 keeps the tables."""
    processes: int = 1
    advertise: tuple[str, ...] = ()
    """URLs at which edges reach the processes, in their order. Empty: the host that an edge used, and consecutive
    ports from ``port - process`` on."""
    shards: int | None = 4
    """Number of shards for a new store; an existing one must have as many. None takes the store's number."""
    tokens_file: str | None = None
    open_to_network: bool = False
    """Permission for peers on other machines to connect without tokens: the network is trusted."""
    hosts: tuple[str, ...] | None = None
    """Names under which readers without a token may call the hub, beside addresses; None: any."""
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    links_max: int = 1024
    idle_connections_max: int = 1024
    """Maximum number of connections that wait for a request, so many that a fleet can come back at once."""
    links_per_token_max: int = 8
    """Maximum number of links of one token; the oldest ends when one more comes."""
    link_window_bytes: int = 8 * MiB
    """Maximum number of bytes that one edge may send ahead of acknowledgements."""
    link_ping_interval_s: float = 75.0
    """Silence of an edge after which the hub asks whether it is there; an edge that pings is not asked."""
    link_silence_s: float = 150.0
    """Silence of an edge after which its link counts as lost."""
    batch_bytes_max: int = 20 * MiB
    """Maximum size of a batch: the longest record of an edge has 17 MiB, and takes a little more where it does not
    compress."""
    response_bytes_max: int = 8 * MiB
    """Maximum size of a JSON response, in payload bytes; readers continue from ``next_offset``."""
    expected_edges: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """(tenant, stream) -> names and patterns of edges without which the stream is never complete."""
    peers: bool = False
    """True when another cluster may have what this one lacks: ABSENT gaps then hold completeness back."""
    retired_after_s: float | None = 90 * 86_400.0
    """Time without a word from a lane after which it no longer counts for completeness, once all of it is in its table;
    None for never."""
    dropped_after_s: float = 30 * 86_400.0
    """Time after that when the lane leaves the state. Its numbers are kept, and an edge that comes back goes on."""
    retain_log_s: float | None = None
    """Time that chunks are kept at least, before what is in the tables is deleted; None keeps all."""
    table_interval_s: float | None = 10.0
    """Interval at which committed records are written to tables; None leaves that to another node."""

    def receiver(self) -> ReceiverSettings:
        """Return the settings of the receiving end of a link."""
        intervals = int(self.link_ping_interval_s * SECOND), int(self.link_silence_s * SECOND)
        return ReceiverSettings(self.link_window_bytes, self.batch_bytes_max, *intervals)
