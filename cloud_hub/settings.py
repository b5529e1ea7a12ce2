"""What a hub node may be told. The command line maps the YAML configuration to these."""

from __future__ import annotations

from dataclasses import dataclass, field

MiB = 1 << 20


@dataclass(frozen=True)
class SequencerSettings:
    """How one shard's log is written. Durations are seconds, sizes bytes."""

    commit_interval_s: float = 0.25
    """Longest time that a batch waits for others to share a chunk; after a longer silence it does not wait."""
    chunk_bytes_max: int = 8 * MiB
    """A chunk is written when this much is pending. A single longer batch still goes into one chunk."""
    pending_bytes_max: int = 64 * MiB
    """Past this much uncommitted data the shard makes its links wait."""
    mark_interval_s: float = 10.0
    """Marks travel with data; when there is none, a chunk is written for marks alone at most this often. In a bucket
    each costs a PUT."""
    follow_interval_s: float = 2.0
    """How often an idle shard looks for chunks of other nodes."""
    retry_min_s: float = 0.05
    retry_max_s: float = 5.0
    """Waits between attempts while the store is in trouble double from the one to the other, with jitter."""
    watermark_validity_s: float = 8.0
    """V of docs/architecture.md: how long a look at the manifest's watermark holds. The collector waits far longer."""
    lanes_max: int = 100_000
    """Lanes that the shard's state may hold; a link that brings another is refused."""
    ranges_per_lane_max: int = 1024
    """Separate ranges that a lane may have: bounds the state under a sender that leaves holes."""
    gaps_per_lane_max: int = 16_384
    """Gap notices that a lane may have."""
    snapshot_interval_s: float = 60.0
    snapshot_chunks: int = 200
    """A snapshot is made after so long or so many chunks, whichever comes first."""


@dataclass(frozen=True)
class HubSettings:
    """One hub node."""

    store: str
    """URI or path for ``storage.object_store.open_store``."""
    store_options: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8090
    """0 takes any free port; ``Hub.url`` tells which."""
    shards: int | None = 4
    """For a new store; an existing one must have as many. None takes what is there."""
    tokens_file: str | None = None
    open_to_network: bool = False
    """Without a tokens file only peers on this machine are let in, unless this says that the network is trusted."""
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    links_max: int = 1024
    link_window_bytes: int = 8 * MiB
    """What one edge may send ahead of acknowledgements."""
    batch_bytes_max: int = 16 * MiB
    response_bytes_max: int = 8 * MiB
    """Longest JSON answer, counted in payload bytes; readers ask again from ``next_offset``."""
    table_interval_s: float | None = 10.0
    """How often committed records are put into tables; None leaves that to another node."""
