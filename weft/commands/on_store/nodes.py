"""``weft hub nodes``: the hub processes of all hosts, from their entries in the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import msgspec

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.opening import on_store
from weft.output import print_json, print_table
from weft.storage.object_store import ObjectStore
from weft.storage.presence.nodes import NodeEntry
from weft.storage.presence.presence import MISSED_MAX

if TYPE_CHECKING:
    from weft.storage.cluster import Cluster

GONE, FOREIGN = "gone", "of another cluster"


@click.command()
@config_argument
@json_option
def nodes(config_file: str, *, as_json: bool) -> None:
    """Show the hub processes that share the store of CONFIG, on all hosts.

    Each owns some of the shards and sends edges of others on to their owners. One that starts owns none for half a
    minute (`joining`). One that is silent for three of its intervals, 15 seconds beside other hosts, is `gone`. So is
    one that was started again since. After five minutes it is not shown. One that serves the store that stood in the
    same place before is `of another cluster`: end it.
    """
    from weft.cloud_hub.cluster.owners import owned_by
    from weft.storage.cluster import read_cluster
    from weft.storage.presence.nodes import running

    async def work(store: ObjectStore) -> tuple[list[NodeEntry], Cluster | None]:
        there = await running(store, time.time_ns())
        return there, await read_cluster(store) if there else None

    nodes, cluster = on_store(config_file, work)
    now, newest = time.time_ns(), dict[str, int]()
    for entry in nodes:
        newest[entry.name] = max(newest.get(entry.name, 0), entry.since)
    found = [
        msgspec.structs.replace(entry, state=_state(entry, cluster, now, newest[entry.name]))
        for entry in sorted(nodes, key=lambda entry: (entry.host, entry.process, entry.name, entry.since))
    ]
    owned = owned_by(found, cluster.tree.count if cluster is not None else 0, now)
    if as_json:
        print_json({"nodes": [{**_view(entry, now), "owns": owned.get(entry.id, [])} for entry in found]})
        return
    if not found:
        click.echo("no hub process runs on this store")
        return
    rows = [
        (
            entry.name or entry.url,
            entry.host,
            entry.state,
            ",".join(map(str, owned.get(entry.id, []))),
            ",".join(map(str, entry.shards)),
            entry.links,
            entry.cluster_log,
            entry.software,
            entry.level,
            f"{max(0, now - entry.seen) / 1e9:.0f} s ago",
        )
        for entry in found
    ]
    print_table(
        ("node", "host", "state", "owns shards", "shards loaded", "links", "cluster log", "release", "level", "seen"),
        rows,
    )
    there = [entry for entry in found if entry.state not in (GONE, FOREIGN)]
    unreachable = [entry.name for entry in there if entry.name and not entry.advertise]
    if len({entry.host for entry in there}) > 1 and unreachable:
        click.echo(
            f"no edge can be sent on to {', '.join(unreachable)}: set `advertise` there to the URLs for edges", err=True
        )


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


def _view(entry: NodeEntry, now: int) -> dict[str, object]:
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
        "cluster_log": entry.cluster_log,
        "cores": entry.weight,
        "software": entry.software,
        "level": entry.level,
        "seen_seconds_ago": max(0, now - entry.seen) / 1e9,
    }
