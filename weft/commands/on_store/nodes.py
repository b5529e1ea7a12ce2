"""``weft hub nodes``: the hub processes of all hosts, from their entries in the store."""

from __future__ import annotations

import time

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.opening import on_store
from weft.output import print_json, print_table
from weft.storage.object_store import ObjectStore
from weft.storage.presence.nodes import NodeEntry


@click.command()
@config_argument
@json_option
def nodes(config_file: str, *, as_json: bool) -> None:
    """Show the hub processes that share the store of CONFIG, on all hosts.

    Each owns some of the shards and sends edges of others on to their owners. One that starts owns none for half a
    minute (`joining`). An entry that was not written for five minutes is not shown.
    """
    from weft.storage.presence.nodes import running

    async def work(store: ObjectStore) -> list[NodeEntry]:
        return await running(store, time.time_ns())

    found = sorted(on_store(config_file, work), key=lambda entry: (entry.host, entry.process, entry.name))
    now = time.time_ns()
    if as_json:
        print_json({"nodes": [_view(entry, now) for entry in found]})
        return
    if not found:
        click.echo("no hub process runs on this store")
        return
    rows = [
        (
            entry.name or entry.url,
            entry.host,
            entry.state,
            ",".join(map(str, entry.shards)),
            entry.links,
            entry.cluster_log,
            entry.software,
            entry.level,
            f"{max(0, now - entry.seen) / 1e9:.0f} s ago",
        )
        for entry in found
    ]
    print_table(("node", "host", "state", "shards loaded", "links", "cluster log", "release", "level", "seen"), rows)
    unreachable = [entry.name for entry in found if entry.name and not entry.advertise]
    if len({entry.host for entry in found}) > 1 and unreachable:
        click.echo(
            f"no edge can be sent on to {', '.join(unreachable)}: set `advertise` there to the URLs for edges", err=True
        )


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
