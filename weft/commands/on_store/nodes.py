"""``weft hub nodes``: the hub processes of all hosts, from their entries in the store."""

from __future__ import annotations

import time
from typing import Any

import click

from weft.commands.common import ExistingPath, json_option
from weft.commands.on_store.opening import on_store
from weft.commands.running import any_hub_argument, names_a_config, running_hub
from weft.config.units import approximate_size
from weft.output import harmless, print_json, print_table
from weft.storage.object_store import ObjectStore


@click.command()
@any_hub_argument
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token, for a URL or a login.")
@json_option
def nodes(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the hub processes that share the store of HUB, on all hosts.

    Each owns some of the shards and sends edges of others on to their owners. One that starts owns none for half a
    minute (`joining`). One that is silent for three of its intervals, 15 seconds beside other hosts, is `gone`. So is
    one that was started again since. After five minutes it is not shown. One that serves the store that stood in the
    same place before is `of another cluster`: end it. By its CONFIG, the store is read, whether hubs run or not.

    Rates are those of what links bring, repetitions included, over the last 60 to 90 seconds before the process was
    seen. Right after a start they are unknown.
    """
    from weft.cloud_hub.cluster.node_views import FOREIGN, GONE

    config = names_a_config(hub)
    found = _of_store(hub) if config else running_hub(hub, token_file).get("/v1/nodes")["nodes"]
    if as_json:
        print_json({"nodes": found})
        return
    if not found:
        click.echo("no hub process runs on this store")
        return
    rows = [
        (
            each["name"] or each["url"],
            each["host"],
            each["state"],
            ",".join(map(str, each["owns"])),
            ",".join(map(str, each["shards"])),
            each["links"],
            "" if each.get("tables") is None else each["tables"],  # an earlier release does not say it
            *_intake(each.get("intake")),
            each["cluster_log"],
            each["software"],
            each["level"],
            f"{each['seen_seconds_ago']:.0f} s ago",
        )
        for each in found
    ]
    print_table(
        (
            "node",
            "host",
            "state",
            "owns shards",
            "shards loaded",
            "links",
            "tables",
            "records/s",
            "bytes/s",
            "cluster log",
            "release",
            "level",
            "seen",
        ),
        [[harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows],
    )
    there = [each for each in found if each["state"] not in (GONE, FOREIGN)]
    unreachable = [each["name"] for each in there if each["name"] and not each["advertise"]]
    if len({each["host"] for each in there}) > 1 and unreachable:
        click.echo(
            f"no edge can be sent on to {', '.join(unreachable)}: set `advertise` there to the URLs for edges", err=True
        )


def _intake(found: dict[str, float] | None) -> tuple[object, object]:
    if found is None:
        return "", ""
    return f"{found['records_per_second']:.1f}", approximate_size(found["bytes_per_second"])


def _of_store(config_file: str | None) -> list[dict[str, Any]]:
    from weft.cloud_hub.cluster.node_views import node_views
    from weft.commands.running import named
    from weft.storage.cluster import read_cluster
    from weft.storage.presence.nodes import running

    async def work(store: ObjectStore) -> list[dict[str, Any]]:
        now = time.time_ns()
        there = await running(store, now)
        return node_views(there, await read_cluster(store) if there else None, now)

    return on_store(named(config_file), work)
