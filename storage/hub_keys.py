"""Keys of a hub's objects in its store: built and parsed only here.

Numbers are zero-padded, so that listing order is log order.
"""

from __future__ import annotations

import re

from weft.protocols import chunk
from weft.protocols.lane import Lane

CLUSTER = "cluster.json"
BACKUP = "backup.json"
"""Key of the record of a backup, in the place of one."""
RESTORING = "restoring"
"""Key of the object that names the backup that is being restored into a store, while that continues."""
_SNAPSHOT = re.compile(r"shard-\d+/snapshot/(\d{20})-[0-9a-f]{16}")


def chunk_prefix(shard: int) -> str:
    """Return the prefix of a shard's chunks."""
    return f"shard-{shard}/chunk/"


NODES = "nodes"


def node_key(node_id: str) -> str:
    """Return the key of a running node's entry, changed by compare-and-swap."""
    return f"{NODES}/{node_id}"


LINKED = "linked"


def linked_key(node_id: str) -> str:
    """Return the key of the edges that are linked to a running node, changed by compare-and-swap."""
    return f"{LINKED}/{node_id}"


SUMMARIES = "summaries"


def summary_key(shard: int) -> str:
    """Return the key of the summary of a shard for lists, changed by compare-and-swap."""
    return f"{SUMMARIES}/{shard}"


KEEPERS = "keepers"


def keeper_key(node_id: str) -> str:
    """Return the key by which a node that keeps tables shows that it is alive."""
    return f"{KEEPERS}/{node_id}"


CONFIG_STATES = "config-states"


def config_states_key(shard: int) -> str:
    """Return the key of what the edges of a shard say about their configurations, changed by compare-and-swap."""
    return f"{CONFIG_STATES}/{shard}"


REGIONS = "regions"


def region_key(name: str, shard: int) -> str:
    """Return the key of the position up to which another region has a shard's log, changed by compare-and-swap."""
    return f"{REGIONS}/{name}/{shard}"


def region_budget_key(name: str) -> str:
    """Return the key of the count of a region's budget, changed by compare-and-swap."""
    return f"{REGIONS}/{name}/budget"


PIPELINES = "pipelines"


def pipelines_of(tenant: str) -> str:
    """Return the prefix of the last reports of a tenant's pipelines."""
    return f"{PIPELINES}/{tenant}"


def pipeline_key(tenant: str, name: str) -> str:
    """Return the key of the last report of a pipeline, changed by compare-and-swap."""
    return f"{PIPELINES}/{tenant}/{name}"


LAST_USES = "token-use"
"""Key of the moments at which tokens were last used, changed by compare-and-swap."""
SHARING = "sharing"
SHARING_SECRET = f"{SHARING}/secret"
"""Key of the secret with which all processes of a hub sign URLs of table files."""
ENTRIES = "cluster/entry"
CLUSTER_SNAPSHOTS = "cluster/snapshot"


def entry_key(n: int) -> str:
    """Return the key of entry n of the cluster log: immutable, made with create-if-absent, never deleted."""
    return f"{ENTRIES}/{n:020d}"


def cluster_snapshot_key(n: int) -> str:
    """Return the key of a snapshot of the cluster log after entry n."""
    return f"{CLUSTER_SNAPSHOTS}/{n:020d}"


REQUESTS = "requests"


def request_key(name: str) -> str:
    """Return the key of the options of an act that waits for approval: immutable, deleted when the request is over."""
    return f"{REQUESTS}/{name}"


def number_of(key: str) -> int | None:
    """Return the number at the end of a key of the cluster log; None for another object's."""
    last = key.rpartition("/")[2]
    return int(last) if len(last) == 20 and last.isascii() and last.isdigit() else None


def chunk_key(shard: int, n: int) -> str:
    """Return the key of chunk n of a shard: immutable, made with create-if-absent."""
    return f"{chunk_prefix(shard)}{chunk.file_name(n)}"


def snapshot_prefix(shard: int) -> str:
    """Return the prefix of a shard's snapshots."""
    return f"shard-{shard}/snapshot/"


def snapshot_key(shard: int, n: int, nonce: int) -> str:
    """Return the key of a snapshot of the fold up to chunk n; ``nonce`` (64 random bits) distinguishes two nodes'
    snapshots."""
    return f"{snapshot_prefix(shard)}{n:020d}-{nonce:016x}"


def parse_snapshot_key(key: str) -> int | None:
    """Return the n of a snapshot's key, or None for another key."""
    match = _SNAPSHOT.fullmatch(key)
    return int(match[1]) if match else None


def ended_prefix(shard: int, lane: Lane | None = None) -> str:
    """Return the prefix of the stored states of a lane that left a shard's state, or of all such lanes."""
    prefix = f"shard-{shard}/ended"
    return prefix if lane is None else f"{prefix}/{lane.tenant}/{lane.edge}/{lane.log_id:016x}/{lane.stream}"


def ended_key(shard: int, lane: Lane, n: int) -> str:
    """Return the key of a lane's state at chunk n, stored before the lane leaves the state."""
    return f"{ended_prefix(shard, lane)}/{n:020d}"


def deletion_prefix(tenant: str, stream: str) -> str:
    """Return the prefix of a stream's declared deletions."""
    return f"deletions/{tenant}/{stream}/"


def deletion_key(tenant: str, stream: str, n: int) -> str:
    """Return the key of a declared deletion: immutable, made with create-if-absent."""
    return f"{deletion_prefix(tenant, stream)}{n:020d}"


def erasure_key(tenant: str, stream: str, n: int) -> str:
    """Return the key of what an erasure with the number of a declared deletion has left behind."""
    return f"erasures/{tenant}/{stream}/{n:020d}"


def parse_ended_key(key: str) -> tuple[Lane, int]:
    """Return lane and n of a key from ``ended_key``.

    Raises:
        ValueError: it is another key.
    """
    _, _, tenant, edge, log_id, stream, n = key.split("/")
    return Lane(tenant, edge, int(log_id, 16), stream), int(n)


def manifest_key(shard: int) -> str:
    """Return the key of the shard's manifest: newest snapshot and watermark, changed by compare-and-swap."""
    return f"shard-{shard}/manifest"


def table_key(tenant: str, stream: str) -> str:
    """Return the directory of a stream's Delta table."""
    return f"tables/{tenant}/{stream}"


LATEST = "latest"


def latest_key(tenant: str, stream: str) -> str:
    """Return the directory of a stream's latest table."""
    return f"{LATEST}/{tenant}/{stream}"


QUARANTINES = "quarantine"


def quarantine_key(tenant: str, stream: str) -> str:
    """Return the directory of the table of a stream's rows that fail quality rules."""
    return f"{QUARANTINES}/{tenant}/{stream}"


def entry_of_table(table: str, version: int) -> str:
    """Return the key of a version's entry in a table's log."""
    return f"{table}/_delta_log/{version:020d}.json"
