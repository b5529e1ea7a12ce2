"""The hub processes of a store for people, from their entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from weft.cloud_hub.cluster.owners import owned_by
from weft.storage.cluster import Cluster
from weft.storage.presence.nodes import NodeEntry
from weft.storage.presence.presence import MISSED_MAX

GONE, FOREIGN = "gone", "of another cluster"


def node_views(entries: Iterable[NodeEntry], cluster: Cluster | None, now: int) -> list[dict[str, Any]]:
    """Return the processes by machine and number, each with its state and the shards that it owns.

    Args:
        cluster: that of the store; None if it has none.
        now: nanoseconds since 1970.
    """
    nodes = sorted(entries, key=lambda entry: (entry.host, entry.process, entry.name, entry.since))
    newest = dict[str, int]()
    for entry in nodes:
        newest[entry.name] = max(newest.get(entry.name, 0), entry.since)
    found = [replace(entry, state=_state(entry, cluster, now, newest[entry.name])) for entry in nodes]
    owned = owned_by(found, cluster.tree.count if cluster is not None else 0, now)
    return [{**_view(entry, now), "owns": owned.get(entry.id, [])} for entry in found]


def _state(entry: NodeEntry, cluster: Cluster | None, now: int, newest: int) -> str:
    """Return the state of a process.

    Args:
        now: nanoseconds since 1970.
        newest: start of the youngest process of the same name.
    """
    if cluster is not None and not entry.is_of(cluster.cluster_id.hex(), cluster.restored):
        return FOREIGN
    is_silent = now - entry.seen > MISSED_MAX * entry.interval_s * 1e9
    return GONE if is_silent or (entry.name and entry.since < newest) else entry.state


def _view(entry: NodeEntry, now: int) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": entry.name,
        "host": entry.host,
        "process": entry.process,
        "url": entry.url,
        "advertise": entry.advertise or None,
        "state": entry.state,
        "shards": list(entry.shards),
        "links": entry.links,
        "tables": entry.tables,
        "intake": None
        if entry.intake is None or entry.state == GONE
        else {
            "records_per_second": entry.intake.records_per_s,
            "bytes_per_second": entry.intake.bytes_per_s,
            "seconds": entry.intake.seconds,
        },
        "cluster_log": entry.cluster_log,
        "cores": entry.weight,
        "load": entry.load,
        "clock_off_seconds": entry.clock_off_s,
        "software": entry.software,
        "level": entry.level,
        "seen_seconds_ago": max(0, now - entry.seen) / 1e9,
    }
