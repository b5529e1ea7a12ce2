"""Settings of a hub node. The command line maps the YAML configuration to these."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from weft.config.errors import Finding
from weft.config.limits import HubLimits
from weft.config.models import HubConfig
from weft.config.sources import Collector
from weft.config.units import PORT_MAX, Address, parse_bind
from weft.network.admission import AdmissionLimits
from weft.network.tls import TlsFiles
from weft.protocols.link import PEERS
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.storage.cluster_log import INTERVAL_S
from weft.storage.table_writer.settings import TableSettings

if TYPE_CHECKING:
    from weft.replication.policy import BudgetRule, StreamWindows
    from weft.replication.runner.settings import LinkSettings


MiB = 1 << 20
_LIMITS = HubLimits()
"""Section ``limits`` with its defaults, so that a hub made without a configuration has the bounds of one."""


@dataclass(frozen=True)
class SequencerSettings:
    """Settings of one shard's log. Durations are seconds, sizes bytes."""

    commit_interval_s: float = 0.25
    """Longest time that a batch waits so that others can share its chunk; after a longer silence it does not wait."""
    commit_interval_min_s: float | None = None
    """The same while commits are cheap (``sequencer.CommitPace``), in a store that charges nothing for an object.
    None: always the longest."""
    chunk_bytes_max: int = 8 * MiB
    """Pending bytes at which a chunk is written. A single longer batch still goes into one chunk."""
    pending_bytes_max: int = _LIMITS.pending_bytes
    """Uncommitted bytes above which the shard's links have to wait."""
    mark_interval_s: float = 60.0
    """Interval of chunks for marks of idle lanes, while there is no data to write them with. In a bucket each costs a
    PUT."""
    trailing_mark_s: float = 10.0
    """The same for a mark that covers new records, or is a lane's first; never longer than the interval."""
    follow_interval_s: float = 2.0
    """Interval at which a shard reads new chunks of other nodes. It doubles with each look that finds none, up to 16
    times this, since each look is a request; a reader of the API has an older state read on."""
    retry_min_s: float = 0.05
    retry_max_s: float = 5.0
    """Longest wait between attempts while the store fails. Waits double from the shortest to this, with jitter."""
    unavailable_after_s: float = 5.0
    """Time of failures of the store after which the shard closes its lanes, so that edges connect to another node."""
    watermark_validity_s: float = 8.0
    """Time for which a read watermark of the manifest is valid: V of docs/architecture.md. The collector waits far
    longer."""
    lanes_max: int = _LIMITS.lanes
    """Maximum number of lanes in the shard's state; a link with another one is refused."""
    lanes_per_edge_max: int = _LIMITS.lanes_per_edge
    """Maximum number of lanes of one edge, in all its logs."""
    lanes_per_tenant_max: int = _LIMITS.lanes_per_tenant
    """Maximum number of lanes of one tenant in the shard."""
    streams_per_tenant_max: int = _LIMITS.streams_per_tenant
    """Maximum number of streams of one tenant in the shard: each has a table of its own."""
    topic_bytes_per_edge_max: int = _LIMITS.edge_topics_bytes
    """Maximum number of bytes of one edge's topic patterns."""
    origin_bytes_per_edge_max: int = _LIMITS.edge_origins_bytes
    """Maximum number of bytes of one edge's origins."""
    ranges_per_lane_max: int = 1024
    """Maximum number of separate ranges of a lane: bounds the state under a sender that leaves holes."""
    gaps_per_lane_max: int = 16_384
    """Maximum number of gaps of a lane: neighbours with the same reason count as one."""
    gaps_per_edge_max: int = 65_536
    """Maximum number of gaps of all lanes of one edge in the shard."""
    snapshot_interval_s: float = 60.0
    """Time after which a snapshot is written, if it would save a start 32 chunks."""
    snapshot_chunks: int = 200
    """Number of chunks after which a snapshot is written in any case."""


class CertificateRights(NamedTuple):
    """Rights of people and programs that come by a client certificate."""

    rights: tuple[str, ...]
    """Grants, scopes and roles."""
    tenant: str = "default"


@dataclass(frozen=True)
class JwtSettings:
    """The tokens of one issuer. Durations are seconds."""

    issuer: str
    audience: str
    jwks_url: str | None = None
    """URL of the key set; else ``jwks_file`` has it."""
    jwks_file: str | None = None
    ca_file: str | None = None
    """Authorities for the URL; None for the system's."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    tenant_claim: str | None = None
    tenant: str = "default"
    """Tenant of all tokens, without a claim of it."""
    rights_claim: str = "scope"
    roles: Mapping[str, tuple[str, ...]] | None = None
    """Word of the claim -> grants and scopes; None if the words are such themselves."""
    edge_claim: str = "sub"
    leeway_s: float = 30.0
    refresh_s: float = 900.0
    unknown_key_s: float = 10.0
    """Minimum interval of reads because of a key that is not known, and between failed ones."""
    keep_s: float = 86_400.0
    """Time for which keys count after they were last read."""


@dataclass(frozen=True)
class RegionSettings:
    """The link to one region."""

    link: LinkSettings
    tenant: str | None = None
    """Tenant whose streams are relayed; None for all."""
    streams: tuple[str, ...] = ("*",)
    """Names and patterns of these streams."""
    forwards: bool = False
    """True to send on what other regions relayed to this one."""
    rate: int = 0
    """Maximum number of bytes that the link of a shard sends in a second; 0: no limit."""
    every_s: float = 0.0
    """Minimum time from one transfer of data to the next."""
    schedule: tuple[StreamWindows, ...] = ()
    """Times at which records are sent; empty: always."""
    budget: BudgetRule | None = None
    """Bytes of a month of all links to the region, those of all processes; None: no limit."""
    pin_s: float = 7 * 86_400.0
    """Time for which the log keeps chunks that the region lacks, beyond what it keeps anyway."""
    write_s: float = 10.0
    """Minimum time between two writes of a shard's position."""
    settle_s: float = 150.0
    """Time after which the position in the store follows that of the link: marks have no acknowledgement, and a region
    stores them within its ``mark_interval``. A link that breaks before sends them again."""


@dataclass(frozen=True)
class HubSettings:
    """Settings of one hub node."""

    store: str
    """URI or path for ``storage.object_store.open_store``."""
    store_options: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8090
    """Port; 0 chooses any free port, which ``Hub.url`` returns."""
    process: int = 0
    """Number of this process among those that share the node's shards. Process 0 knows how far all tables are."""
    processes: int = 1
    cores: float = 1.0
    """Cores for each process: hosts with more get more shards."""
    beat_interval_s: float = 5.0
    """Interval at which processes show others that they are there; one that missed three counts as gone."""
    advertise: tuple[str, ...] = ()
    """URLs of the processes for edges, in their order. Empty: the host that an edge used, and consecutive ports from
    ``port - process`` on."""
    shards_max: int | None = None
    """Number of shards up to which busy ones are split. None splits none."""
    begins: bool = True
    """Permission to make a cluster in a place that holds none. A process that is started again needs none: its store is
    away for the moment."""
    shards: int | None = None
    """Number of shards for a new store; an existing one must have the same. None accepts the store's number, and gives
    a new one ``storage.cluster.NEW_SHARDS``."""
    jwt: JwtSettings | None = None
    """Tokens of an issuer; None takes none."""
    tokens_required: bool = False
    """True if every request needs a token, even while there is none."""
    cluster_log_interval_s: float = INTERVAL_S
    """Interval of looks for the next entry of the cluster log."""
    open_to_network: bool = False
    """Permission for peers on other machines to connect without tokens: the network is trusted."""
    tls: TlsFiles | None = None
    """Files of TLS; None for plain HTTP."""
    certificate_readers: Mapping[str, CertificateRights] = field(default_factory=dict)
    """``CN=`` and a common name, or ``OU=`` and a unit, of certificates of readers -> their rights."""
    edges_need_certificate: bool = False
    """With authorities in ``tls``: refuse links without a certificate."""
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    """Bounds on connections whose TLS handshake is not complete."""
    hosts: tuple[str, ...] | None = None
    """Names of the hub that readers without a token may use, beside addresses; None: any."""
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    links_max: int = _LIMITS.links
    idle_connections_max: int = _LIMITS.idle_connections
    """Maximum number of connections that wait for a request, enough for a fleet that connects at once."""
    connections_per_address_max: int = _LIMITS.connections_per_address
    """Maximum number of connections of one address, without open links."""
    links_per_token_max: int = _LIMITS.links_per_token
    """Maximum number of links of one token; the oldest ends for a further one."""
    messages_per_s: float = 2000.0
    """Messages to edges that one tenant may publish a second, each edge counted."""
    link_window_bytes: int = _LIMITS.window_bytes
    """Maximum number of bytes that one edge may send ahead of acknowledgements."""
    link_ping_interval_s: float = 75.0
    """Silence of an edge after which the hub sends a PING; an edge that pings gets none."""
    link_silence_s: float = 150.0
    """Silence of an edge after which its link counts as lost."""
    batch_bytes_max: int = _LIMITS.batch_bytes
    """Maximum size of a batch: the longest record of an edge has 17 MiB, and takes a little more if it does not
    compress."""
    record_bytes_max: int = _LIMITS.record_bytes
    """Maximum bytes of a record: key, payload and headers."""
    response_bytes_max: int = _LIMITS.response_bytes
    """Maximum size of a JSON response, in payload bytes; readers continue from ``next_offset``."""
    peers: bool = False
    """True when another cluster may have records that this one lacks: ABSENT gaps then hold completeness back."""
    retired_after_s: float | None = 90 * 86_400.0
    """Silence of a lane after which it no longer counts for completeness, if all of it is in its table; None for
    never."""
    dropped_after_s: float = 30 * 86_400.0
    """Further time after which the lane leaves the state. Its numbers are kept, so an edge that comes back resumes."""
    regions: Mapping[str, RegionSettings] = field(default_factory=dict)
    """Other regions to which the log is forwarded, by name."""
    retain_log_s: float | None = None
    """Minimum time that chunks are kept, before those that are in the tables are deleted; None keeps all."""
    table_interval_s: float | None = 10.0
    """Interval at which committed records are written to tables; None if another node does this."""
    table_write_bytes: int = 16 * MiB
    """Bytes of a stream's new records that are written at the next interval."""
    table_write_after_s: float | None = None
    """Time for which fewer bytes wait for more; None for none."""
    iceberg: bool = False
    """True if tables have Iceberg metadata, unless other formats are declared for the stream."""
    iceberg_interval_s: float = 600.0
    """Interval at which such tables get a snapshot."""
    table_joined_bytes: int = 512 * MiB
    """Bytes up to which small files of a table are joined."""
    table_vacuum_after_s: float = 7 * 86_400.0
    """Age at which replaced files of a table are deleted, rounded up to hours."""
    sharing: bool = False
    """Permission to read the tables by Delta Sharing."""
    sharing_bytes_per_s: int = _LIMITS.sharing_bytes
    """Bytes of table files that the process sends to its clients a second; half of them to one tenant."""
    sql: bool = False
    """Permission to ask in SQL over the tables."""
    sql_bytes: int = _LIMITS.sql_bytes
    """Memory of a query, in bytes; two run at one time."""
    kafka_host: str = "127.0.0.1"
    kafka_port: int | None = None
    """Port for Kafka's clients; None if they are not served. 0 chooses any free port."""
    kafka_advertise: Address | None = None
    """Address of this process that its answers name; None for the one at which a client came."""
    tracing: Collector | None = None
    """Collector of the spans of traced messages; None for none."""

    @property
    def scheme(self) -> str:
        """Return the scheme of the hub's URLs."""
        return "http" if self.tls is None else "https"

    def receiver(self) -> ReceiverSettings:
        """Return the settings of the receiving end of a link."""
        intervals = int(self.link_ping_interval_s * SECOND), int(self.link_silence_s * SECOND)
        return ReceiverSettings(
            self.link_window_bytes,
            self.batch_bytes_max,
            self.record_bytes_max,
            *intervals,
            mark_interval=int(self.sequencer.mark_interval_s * SECOND),
            features=(PEERS,) if self.peers else (),
        )

    def tables(self) -> TableSettings:
        """Return the bounds of the table step."""
        return TableSettings(
            interval_s=self.table_interval_s or TableSettings.interval_s,
            write_bytes=self.table_write_bytes,
            write_after_s=self.table_write_after_s,
            compact_bytes_max=self.table_joined_bytes,
            compact_file_bytes_max=self.table_joined_bytes // 4,
            retention_hours=math.ceil(self.table_vacuum_after_s / 3600),
        )


# Number of processes that share a hub node's shards, and the address of each.


def cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def process_count(config: HubConfig, asked: int | None, cores: int, shards: int) -> int:
    """Return the number of processes: the requested one, else the setting, else one per core, and not more than there
    are URLs for edges, as a split adds shards and no URL. Never more than shards.

    With port 0, each process would get any free port, which the others could not know: then there is one process.

    Args:
        shards: of the store, or of the configuration for a new one.
    """
    if parse_bind(config.listen).port == 0:
        return 1
    return min(asked or config.processes or min(cores, len(config.advertise or ()) or cores), shards)


def addresses(config: HubConfig, processes: int) -> list[Address]:
    """Return the address of each process: the port of ``listen`` and the following ones."""
    host, port = parse_bind(config.listen)
    return [Address(host, port + number) for number in range(processes)]


def check_processes(config: HubConfig, processes: int) -> list[Finding]:
    """Return the findings that keep this many processes from running."""
    findings = []
    last = addresses(config, processes)[-1]
    if last.port > PORT_MAX:
        findings.append(
            Finding(
                ("listen",),
                f"{processes} processes need the ports up to {last.port}, the last is {PORT_MAX}. Choose a lower port, "
                "or fewer processes",
            )
        )
    if config.advertise is not None and len(config.advertise) != processes:
        message = f"expected a URL for each of the {processes} processes, got {len(config.advertise)}"
        findings.append(Finding(("advertise",), f"{message}. Add or remove some, or set processes"))
    return findings
