"""Keys of a hub's objects in its store: built and parsed only here.

Numbers are zero-padded, so that listing order is log order.
"""

from __future__ import annotations

import re

from weft.protocols import chunk

CLUSTER = "cluster.json"
_SNAPSHOT = re.compile(r"shard-\d+/snapshot/(\d{20})-[0-9a-f]{16}")


def chunk_prefix(shard: int) -> str:
    """Return the prefix of a shard's chunks."""
    return f"shard-{shard}/chunk/"


NODES = "nodes"


def node_key(node_id: str) -> str:
    """Return the key of a running node's entry, changed by compare-and-swap."""
    return f"{NODES}/{node_id}"


def chunk_key(shard: int, n: int) -> str:
    """Return the key of chunk n of a shard: immutable, made with create-if-absent."""
    return f"{chunk_prefix(shard)}{chunk.file_name(n)}"


def snapshot_prefix(shard: int) -> str:
    """Return the prefix of a shard's snapshots."""
    return f"shard-{shard}/snapshot/"


def snapshot_key(shard: int, n: int, nonce: int) -> str:
    """Return the key of a snapshot of the fold up to chunk n; ``nonce`` (64 random bits) tells two nodes' snapshots
    apart."""
    return f"{snapshot_prefix(shard)}{n:020d}-{nonce:016x}"


def parse_snapshot_key(key: str) -> int | None:
    """Return the n of a snapshot's key, or None when the key is no snapshot's."""
    match = _SNAPSHOT.fullmatch(key)
    return int(match[1]) if match else None


def manifest_key(shard: int) -> str:
    """Return the key of the shard's manifest: newest snapshot and watermark, changed by compare-and-swap."""
    return f"shard-{shard}/manifest"


def table_key(tenant: str, stream: str) -> str:
    """Return the directory of a stream's Delta table."""
    return f"tables/{tenant}/{stream}"
