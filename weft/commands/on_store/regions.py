"""``weft hub region``: the links to other regions, as they last wrote it to the store, and orders to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.declaring import declare
from weft.commands.on_store.opening import by_option, on_store, reason_option
from weft.config.units import approximate_duration, format_size
from weft.output import Failed, print_json, print_table
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.config.models import HubConfig
    from weft.storage.region_positions import RegionPosition

OLD_S = 900.0
"""Age of a report after which no process seems to run the link: one is written every five minutes."""
Found = list[tuple[str, int, "RegionPosition | None"]]


@click.group("region")
def command() -> None:
    """See and steer the links to other regions: hubs of other clusters that get what this one's log receives."""


@command.command()
@config_argument
@json_option
def status(config_file: str, *, as_json: bool) -> None:
    """Show the link of each shard to each region of CONFIG, as its process last wrote it to the store.

    `next` is the first chunk of the shard that the region is not known to have. The log keeps chunks from there on,
    for as long as `pin` allows. The figures are up to five minutes old, and `seen` says how old. A region that has
    everything has a lag of nothing. A lag of records is unknown until the link has caught up once.
    """
    from weft.commands.common import load_hub
    from weft.storage.cluster import read_cluster
    from weft.storage.region_positions import RegionPositions

    config: HubConfig = load_hub(config_file)

    async def work(store: ObjectStore) -> Found:
        cluster = await read_cluster(store)
        if cluster is None:
            return []
        positions = RegionPositions(store, cluster)
        return [
            (name, shard, (await positions.read(name, shard))[0])
            for name in sorted(config.regions)
            for shard in range(cluster.tree.count)
        ]

    found, now = on_store(config_file, work), time.time_ns()
    if as_json:
        print_json({"regions": [_view(*each, now) for each in found]})
        return
    if not config.regions:
        click.echo("no regions: `regions` of the configuration names hubs that get what this one's log receives")
        return
    print_table(
        (
            "region", "shard", "state", "records behind", "bytes behind", "behind by", "next", "seen", "lost chunks",
            "error",
        ),
        [_row(*each, now) for each in found],
    )  # fmt: skip


@command.command()
@config_argument
@click.argument("region")
@reason_option
@by_option
def pause(config_file: str, region: str, *, reason: str, by: str | None) -> None:
    """Let the records for REGION of CONFIG wait, at all hosts, until `weft hub region resume`.

    The links stay open. The log keeps what the region lacks, for as long as `pin` allows.
    """
    from weft.cloud_hub.declared import changes

    _known(config_file, region)
    declare(config_file, lambda _now: changes.pause_region(region, paused=True), by, reason)
    click.echo(f"records for {region} wait within some seconds, until: weft hub region resume {config_file} {region}")


@command.command()
@config_argument
@click.argument("region")
@reason_option
@by_option
def resume(config_file: str, region: str, *, reason: str, by: str | None) -> None:
    """Let the links to REGION of CONFIG go on after a pause."""
    from weft.cloud_hub.declared import changes

    _known(config_file, region)
    declare(config_file, lambda _now: changes.pause_region(region, paused=False), by, reason)
    click.echo(f"the links to {region} go on within some seconds")


@command.command()
@config_argument
@click.argument("region")
@reason_option
@by_option
def compare(config_file: str, region: str, *, reason: str, by: str | None) -> None:
    """Compare all of the log with what REGION of CONFIG holds, and send what it lacks.

    For a region that lost what it had acknowledged: its store was restored from a backup, say. The links begin again at
    the start of the log. What was deleted from the log is not sent (`retain_log`).
    """
    from weft.cloud_hub.declared import changes

    _known(config_file, region)
    declare(config_file, lambda _now: changes.compare_region(region), by, reason)
    click.echo(f"the links to {region} begin again at the start of the log within some seconds")


def _known(config_file: str, region: str) -> None:
    from weft.commands.common import load_hub

    known = load_hub(config_file).regions
    if region not in known:
        raise Failed(f"`regions` of {config_file} has no {region}; there are: {', '.join(sorted(known)) or 'none'}")


def _row(name: str, shard: int, position: RegionPosition | None, now: int) -> tuple[object, ...]:
    report = None if position is None else position.report
    if position is None or report is None:
        return name, shard, "not begun", "", "", "", "", "", "", ""
    age = max(0, now - report.at) / 1e9
    return (
        name, shard, _state(report.state, age),
        "unknown" if report.lag_records is None else report.lag_records,
        "unknown" if report.lag_bytes is None else f"about {format_size(report.lag_bytes)}",
        approximate_duration(report.lag_seconds) if report.lag_seconds else "",
        position.next, f"{approximate_duration(age)} ago",
        ", ".join(f"{first} to {end - 1}" for first, end in position.lost), report.error,
    )  # fmt: skip


def _state(state: str, age_s: float) -> str:
    return "no news" if age_s > OLD_S else state


def _view(name: str, shard: int, position: RegionPosition | None, now: int) -> dict[str, object]:
    report = None if position is None else position.report
    if position is None or report is None:
        return {"region": name, "shard": shard, "state": "not begun"}
    age = max(0, now - report.at) / 1e9
    return {
        "region": name,
        "shard": shard,
        "state": _state(report.state, age),
        "process": report.host,
        "peer": position.peer or None,
        "next": position.next,
        "lag_records": report.lag_records,
        "lag_bytes": report.lag_bytes,
        "lag_seconds": report.lag_seconds,
        "lost_chunks": [{"first": first, "end": end} for first, end in position.lost],
        "error": report.error,
        "seen_seconds_ago": age,
    }
